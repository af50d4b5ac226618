package tiny

// table has a mutation a line: its name, what the target does, and the statements that say otherwise.
const table = `
destination-port-wrong | sends to UDP port 4790 | FRM-01
reply-to-source-port | answers to the UDP port that the request came from | FRM-02 FRM-01
source-port-checked | drops packets from UDP ports below 0xC000 | FRM-02
source-port-varies | sends each packet from another UDP port | FRM-03
udp-sum-needed | drops IPv4 packets without a UDP checksum | FRM-04
udp-sum-refused | drops packets with a UDP checksum | FRM-06
v6-udp-sum-needed | drops IPv6 packets without a UDP checksum | FRM-05
fragmentable | sends IPv4 packets without don't-fragment | FRM-07
ip-sum-wrong | sends wrong IPv4 header checksums | FRM-07
ttl-one | sends with TTL 1 | FRM-08
udp-length-without-icrc | leaves the ICRC out of the UDP length | FRM-08
ethernet-pad-refused | drops frames with Ethernet padding | FRM-09
short-packet-zeroes | fills packets that are too short with zeroes | FRM-10
udp-length-ignored | takes packets whose UDP length exceeds the IP packet | FRM-11
pad-too-long-accepted | takes a pad longer than the payload for none | FRM-12
fragment-accepted | takes a fragment for a packet | FRM-13
options-kill | goes to ERR for IPv4 options | FRM-14
any-destination | takes packets to any address | FRM-15
any-source | takes packets of a connection from any address | FRM-16
tos-checked | drops packets with a traffic class | FRM-17
ttl-checked | drops packets whose TTL is not 64 | FRM-18
tag-refused | drops tagged frames | FRM-20
v6-flow-label-checked | drops packets with a flow label | FRM-19

tver-ignored | ignores the transport version | BTH-01
unknown-qp-to-newest | gives packets for unknown queue pairs to another | BTH-02
unknown-qp-nak | answers NAK for unknown queue pairs | BTH-02
qp0-to-newest | gives packets for queue pair 0 to another | BTH-03
wrong-class-nak | answers NAK to packets of another transport service | BTH-04
wrong-class-kills | goes to ERR for a packet of another transport service | BTH-04
pkey-limited-only | takes only the limited P_Key | BTH-05
pkey-exact | takes only the P_Key of its own table | BTH-06
pkey-ignored | takes any P_Key | BTH-07
migreq-needed | drops packets with M = 0 | BTH-09
fecn-refused | drops packets with FECN, BECN or the bits beside them | BTH-10
reserved-bits-checked | drops packets with bits beside AckReq | BTH-11
tver-one | sends transport version 1 | BTH-12
pkey-zero | sends P_Key 0 | BTH-12
reserved-bits-set | sets a bit beside AckReq | BTH-12
reserved-six-set | sets a bit beside FECN | BTH-12
response-solicited | sets SE in responses | BTH-13
response-asks-ack | sets AckReq in responses | BTH-13
response-qpn-wrong | sends responses to another queue pair | BTH-13
own-qpn-as-destination | sends its own queue pair number | BTH-13
cnp-kills | goes to ERR for a congestion notification | BTH-14
odd-cnp-kills | goes to ERR for an odd congestion notification | BTH-16
cnp-takes-psn | counts a congestion notification as a packet | BTH-14
reserved-opcode-send | takes reserved opcodes for a SEND | BTH-15 OPS-12

icrc-ignored | ignores the ICRC | CRC-02 CRC-03 CRC-04 CRC-05 CRC-06 CRC-07
icrc-error-nak | answers a wrong ICRC with a NAK | CRC-02
icrc-error-advances | counts a packet with a wrong ICRC | CRC-02 CRC-10
icrc-skips-payload | leaves the payload out of the ICRC | CRC-02
icrc-skips-bth | leaves the BTH out of the ICRC | CRC-03
icrc-skips-ip-id | leaves the IPv4 identification out of the ICRC | CRC-04
icrc-skips-source-port | leaves the UDP source port out of the ICRC | CRC-05
icrc-big-endian-accepted | takes an ICRC in the wrong byte order, too | CRC-06
icrc-without-seed-accepted | takes an ICRC without the eight leading bytes, too | CRC-07
pad-delivered | stores the pad | CRC-08
pad-missing | sends payloads without their pad | CRC-09 RDR-01
pad-dirty | sends pads that are not zero | CRC-09
pad-count-zero | sends PadCnt 0 | CRC-09
icrc-big-endian | sends the ICRC in the wrong byte order | CRC-09
icrc-wrong | sends wrong ICRCs | CRC-09 CRC-01 ROB-12

msn-stuck | does not count messages | SND-01
payload-bit-flipped | stores a byte wrong | SND-02
ack-silent | does not acknowledge | SND-01
ack-psn-off-by-one | acknowledges the next PSN | SND-01
ack-missing-last | does not acknowledge the last packet of several | SND-03
msn-counts-packets | counts packets instead of messages | SND-03
byte-len-of-last | reports the length of the last packet | SND-03
immediate-swapped | reports immediate data in the wrong byte order | SND-04 SND-05 UD-05
immediate-missing | does not report immediate data | SND-04 SND-05 UD-05
no-channel-events | raises no completion event | SND-06
solicited-ignored | takes no packet for a solicited one | SND-06
solicited-arm-takes-all | raises an event for unsolicited completions, too | SND-07
unasked-not-executed | drops an Only that asks for no ACK | SND-08
completions-twice | completes everything twice | SND-09
recv-too-small-truncates | cuts a SEND that its receive cannot hold | SND-10 UC-13
bad-recv-kept | does not complete a receive that was too small | SND-10
bad-recv-tolerated | goes on after a SEND that its receive cannot hold | SND-10
recv-lkey-ignored | ignores a bad L_Key of a receive | SND-11
empty-sge-ends | stops at an empty SGE | SND-12
rnr-silent | is silent when no receive is posted | SND-13
rnr-timer-wrong | sends another RNR timer than it was told | SND-13
rnr-psn-wrong | sends an RNR NAK for the next PSN | SND-13
rnr-counts-msn | counts a message that it refuses with an RNR NAK | SND-13
rnr-kills | goes to ERR after an RNR NAK | SND-14
rnr-advances | takes the PSN of a packet that it refuses with an RNR NAK | SND-14
nak-after-rnr | sends a NAK for each packet behind an RNR NAK | SND-15
recv-per-packet | takes a receive for each packet | SND-16
invalidate-does-nothing | leaves an invalidated key usable | SND-17 MEM-09
invalidated-key-missing | does not report the invalidated key | SND-17
invalidate-error-nak | answers a failed invalidation with a NAK | SND-18
invalidate-anything | takes any key for invalidated | SND-18 SND-19
ack-before-completion | acknowledges a SEND before it completes the receive | SND-20

write-not-done | stores nothing | WRT-01 WRT-02
write-completes | completes a receive for a WRITE | WRT-01
write-later-packets-lost | stores the first packet of a WRITE only | WRT-02
zero-write-checked | checks the R_Key of a WRITE of no bytes | WRT-03
write-imm-as-recv | reports a WRITE with immediate data as a SEND | WRT-04
write-imm-without-recv | takes a WRITE with immediate data without a receive | WRT-06
write-needs-recv | wants a receive for a WRITE | WRT-07
write-imm-byte-len | reports the length of the last packet of a WRITE | WRT-05
write-imm-scatters | stores into the receive of a WRITE with immediate data | WRT-05
unknown-key-works | takes any unknown R_Key | WRT-08 RDR-09
remote-write-ignored | lets a WRITE to regions without REMOTE_WRITE | WRT-09
qp-write-right-ignored | lets a WRITE through a queue pair without REMOTE_WRITE | WRT-10 UC-10
bounds-one-before | lets a WRITE begin a byte before the region | WRT-11
bounds-one-after | lets a WRITE end a byte after the region | WRT-12
bounds-after-partial | stores a part of a WRITE that ends after the region | WRT-12
address-wrap-ignored | lets an address wrap around | WRT-13
rkey-pd-ignored | takes R_Keys of other protection domains | WRT-14
write-short-accepted | takes a WRITE shorter than its RETH says | WRT-15 WRT-17
write-long-accepted | takes a WRITE longer than its RETH says | WRT-16 WRT-18
length-limit-ignored | takes a length above 2^31 | WRT-19 RDR-12
first-length-ignored | takes a First that is shorter than the path MTU | WRT-20 WRT-24
middle-length-ignored | takes a Middle that is shorter than the path MTU | WRT-21
last-length-ignored | takes a Last without payload | WRT-22
only-length-ignored | takes an Only longer than the path MTU | WRT-23
zero-based-ignored | adds something to the offset in a zero-based region | WRT-25
iova-ignored | ignores the iova of a region | WRT-26
key-low-byte-ignored | ignores the low byte of R_Keys | WRT-27
dereg-does-nothing | leaves deregistered memory usable | WRT-28
error-nak-psn-wrong | sends the next PSN in a NAK for a bad request | WRT-08
error-nak-only | goes on after a bad request | WRT-08
bad-request-dropped | drops bad requests without a word | WRT-08
access-error-as-invalid | answers 0x61 where 0x62 is due | WRT-08
invalid-as-operational | answers 0x63 where 0x61 is due | WRT-15

read-stale | reads zeroes | RDR-17
zero-read-checked | checks the R_Key of a READ of no bytes | RDR-02
read-response-mtu-half | answers a READ in packets of half the path MTU | RDR-03 RDR-04
read-last-missing | does not send the last packet of an answer | RDR-04 RDR-05
read-last-as-middle | sends a READ response Last as a Middle, without AETH | RDR-04 RDR-05
read-middle-as-last | sends each READ response Middle as a Last | RDR-05
read-psn-constant | sends all packets of an answer with one PSN | RDR-04
read-takes-one-psn | takes one PSN for a READ of several packets | RDR-06 RDR-07
read-takes-psn-more | takes one PSN too many for a READ | RDR-06
msn-counts-reads-twice | counts a READ twice | RDR-08
msn-skips-reads | does not count a READ | RDR-08
read-msn-old | sends the old MSN in READ responses | RDR-08
remote-read-ignored | lets a READ from regions without REMOTE_READ | RDR-10
qp-read-right-ignored | lets a READ through a queue pair without REMOTE_READ | RDR-11
read-payload-ignored | takes a READ request with a payload | RDR-13
no-resources-served | serves a READ with max_dest_rd_atomic 0 | RDR-14
reads-many-dropped | drops a READ while its resources are in use | RDR-15
read-answered-late | answers a READ after later requests | RDR-16
read-leaks | sends bytes before it refuses a READ | RDR-18 RDR-20
bounds-ignored | ignores the end of a region | RDR-18 WRT-11 WRT-12
read-needs-ackreq | answers a READ only when it asks for an ACK | RDR-19

atomic-cell-big-endian | stores atomics in the wrong byte order | ATM-01
atomic-ack-little-endian | sends the original value in the wrong byte order | ATM-01
atomic-returns-new | returns the new value of an atomic | ATM-01
cmpswap-inverted | swaps when the values differ | ATM-02 ATM-03
fetchadd-saturates | stops at 2^64 - 1 | ATM-04
fetchadd-compares | compares in a FetchAdd | ATM-05
atomic-misaligned | executes misaligned atomics | ATM-06
remote-atomic-ignored | lets atomics to regions without REMOTE_ATOMIC | ATM-07
qp-atomic-right-ignored | lets atomics through a queue pair without REMOTE_ATOMIC | ATM-08
atomic-end-refused | refuses atomics on the last cell of a region | ATM-09
fetchadd-carry-lost | loses the carry of a FetchAdd | ATM-04
atomic-lost | loses an atomic after that of another queue pair | ATM-10
atomic-ack-psn | answers an atomic with the next PSN | ATM-11
atomic-msn-missing | does not count atomics | ATM-11
atomic-plain-ack | answers an atomic with an ACK | ATM-11
atomic-silent | does not answer atomics | ATM-11 ROB-12
duplicate-atomic-executed | executes a duplicate atomic again | ATM-12 ROB-05
duplicate-atomic-reads | answers a duplicate atomic with today's value | ATM-12
forgotten-atomic-answered | answers a duplicate atomic that it has forgotten | ATM-13
qp-flush-right-ignored | lets a FLUSH through a queue pair without the right | ATM-16
flush-rights-ignored | lets a FLUSH to a region without the right | ATM-16
flush-plain-ack | answers a FLUSH with an ACK | ATM-15
flush-acked-without-support | acknowledges a FLUSH, which it says it does not have | ATM-14
atomic-write-swapped | swaps the bytes of an ATOMIC WRITE | ATM-17
atomic-write-unaligned | executes a misaligned ATOMIC WRITE | ATM-18

gap-executed | executes a packet behind a gap | PSN-01
gap-silent | says nothing about a gap | PSN-01 ROB-03
nak-psn-of-packet | sends the PSN of the packet in a NAK for a gap | PSN-01
nak-every-gap | sends a NAK for each packet behind a gap | PSN-02
duplicate-in-gap-nak | sends a NAK for a duplicate within a gap | PSN-05
nak-then-deaf | drops the packet that closes a gap | PSN-03 ROB-06
nak-never-again | sends one NAK for all gaps | PSN-04
psn-window-small | takes notice of 2^16 PSNs only | PSN-06 PSN-07
psn-window-inverted | mistakes far ahead for far behind | PSN-06 PSN-07
psn-does-not-wrap | follows 0xFFFFFF with 1 | PSN-08
read-psn-not-wrapped | follows 0xFFFFFF with 1 in READ responses | PSN-09
nak-msn-wrong | sends the next MSN in NAKs | PSN-10
nak-wrong-qpn | sends NAKs to another queue pair | PSN-10
nak-requests-ack | sets AckReq in NAKs | PSN-10
duplicate-silent | does not answer duplicates | PSN-11 PSN-21
duplicate-nak | answers duplicates with a NAK | PSN-11
duplicate-counts-msn | counts duplicates | PSN-11
duplicate-ack-psn-ahead | acknowledges a duplicate with the PSN it expects | PSN-11
duplicate-executed | executes duplicates | PSN-11 PSN-13 ROB-04
duplicate-rnr | answers a duplicate SEND with an RNR NAK | PSN-12
duplicate-write-checked | checks the R_Key of a duplicate WRITE | PSN-14
duplicate-read-silent | does not answer a duplicate READ | PSN-15
duplicate-read-old-data | answers a duplicate READ with zeroes | PSN-15
duplicate-read-psn | answers a duplicate READ with new PSNs | PSN-15
duplicate-read-from-start | answers the tail of a READ with all of it | PSN-16
duplicate-read-unchecked | answers any old READ | PSN-17
duplicate-read-any-key | answers a duplicate READ with another R_Key | PSN-18
duplicate-moves-epsn | expects the packet after a duplicate | PSN-19
duplicate-ends-message | gives up a message for a duplicate | PSN-20

middle-first-accepted | begins a message with a Middle | OPS-01 OPS-09
last-first-accepted | begins a message with a Last | OPS-02
message-cut-by-only | lets an Only cut a message | OPS-03 OPS-06 OPS-07
message-cut-by-first | lets a First cut a message | OPS-08
operations-mixed | goes on with a WRITE in a SEND | OPS-04 OPS-05 OPS-11
last-invalidate-refused | refuses a SEND Last with Invalidate | OPS-10
nak-in-error | answers NAK in the error state | OPS-13
flush-missing | flushes nothing | OPS-14
flush-out-of-order | flushes receives in the wrong order | OPS-14 QPS-07
partial-recv-flushed-last | flushes the receive in progress last | OPS-15
partial-recv-forgotten | forgets the receive in progress | OPS-15

request-psn-skips | leaves a PSN out after each request | REQ-01 REQ-10
ack-not-asked | never asks for an ACK | REQ-01
middle-without-payload | sends a Middle without payload | REQ-01
reth-length-of-packet | puts the length of the packet into a RETH | REQ-02
read-request-one-psn | takes one PSN for a READ request of several packets | REQ-03
empty-send-filled | sends a byte in a SEND of none | REQ-04
solicited-on-every-packet | sets SE in each packet | REQ-05
solicited-missing | never sets SE | REQ-05
solicited-on-write | sets SE for a WRITE | REQ-06
rd-atomic-ignored | sends READs without a limit | REQ-07 REQ-08
window-endless | has any number of packets in flight | REQ-11
fence-ignored | ignores the fence | REQ-09
inline-late | takes inline data when it sends | REQ-12
inline-garbled | sends zeroes for inline data | REQ-12
immediate-sent-swapped | sends immediate data in the wrong byte order | REQ-13
post-in-any-state | takes requests in any state | REQ-14
post-any-sges | takes any number of SGEs | REQ-15
post-any-operation | takes any operation | REQ-16

ack-completes-one | takes an ACK for one request only | RSP-01
partial-ack-completes | completes a message by the ACK of a part | RSP-02
stale-ack-kills | goes to ERR for an old ACK | RSP-03
ghost-ack-kills | goes to ERR for an ACK of what it did not send | RSP-04
ghost-ack-completes | completes by an ACK of what it did not send | RSP-04
duplicate-ack-kills | goes to ERR for a second ACK | RSP-05 ROB-07
ack-completes-read | completes a READ by an ACK | RSP-06
read-acks-nothing | does not take a READ response for an ACK of what was before | RSP-07
read-gap-accepted | does not see that a READ response is missing | RSP-08
read-gap-restarts | asks for all of a READ again | RSP-08
read-restart-refused | refuses an answer that begins again | RSP-09
read-continuation-refused | refuses an answer that goes on | RSP-10
read-length-ignored | takes a READ response that is too short | RSP-11
response-for-send-ignored | ignores a READ response for a SEND | RSP-12
atomic-result-swapped | stores the result of an atomic in the wrong byte order | RSP-13
sequence-nak-ignored | ignores a NAK of the sequence error | RSP-14
sequence-nak-resends-next | goes back to the PSN after that of a NAK | RSP-14
nak-acks-nothing | does not take a NAK for an ACK of what was before | RSP-14 RSP-27
sequence-nak-twice | sends everything twice after a NAK | RSP-15
sequence-nak-not-counted | goes back for ever | RSP-16
nak-invalid-ignored | ignores NAK 0x61 | RSP-17
nak-access-ignored | ignores NAK 0x62 | RSP-18 RSP-21
nak-operational-ignored | ignores NAK 0x63 | RSP-19
nak-status-wrong | completes with RETRY_EXC_ERR after a NAK | RSP-17 RSP-18 RSP-19
nak-fails-newest | fails the newest request for a NAK | RSP-17
reserved-syndrome-ignored | ignores reserved syndromes | RSP-20
error-without-state | stays in RTS after an error | RSP-17
flush-reversed | flushes send requests in the wrong order | RSP-17
rnr-at-once | does not wait after an RNR NAK | RSP-22
rnr-zero-short | takes RNR timer 0 for the shortest | RSP-23
rnr-one-more | tries once more than rnr_retry after RNR NAKs | RSP-24 RSP-25
rnr-seven-counts | gives up though rnr_retry is 7 | RSP-26
rnr-cut-by-nak | ends the wait of an RNR NAK for another NAK | RSP-28
msn-checked | ignores an ACK whose MSN is not the expected one | RSP-29
credit-zero-stops | stops for ever at credit 0 | RSP-30

timer-early | sends again after a quarter of the timeout | TMO-01
timer-late | sends again after twenty times the timeout | TMO-01
retry-one-less | tries once less than retry_cnt | TMO-02
retry-one-more | tries once more than retry_cnt | TMO-02
retry-forever | tries for ever | TMO-02
timeout-zero-fires | has a timeout though it is 0 | TMO-03
resent-completes-twice | completes twice what was sent twice | TMO-04 TMO-06
retries-not-reloaded | does not reload its retries | TMO-05
resent-changed | changes what it sends again | TMO-07
resent-without-ackreq | does not ask for an ACK when it sends again | TMO-07
resent-new-psn | sends again with other PSNs | TMO-07
read-resumes-whole | asks for all of a READ again after a timeout | TMO-08
read-resumes-old-address | asks for the tail of a READ at its beginning | TMO-08
read-resent-new-psn | asks for a READ again with another PSN | TMO-09
atomic-resent-changed | changes an atomic that it sends again | TMO-10

uc-acks-unasked | acknowledges what asks for no ACK on an unreliable connection | UC-01
uc-acks | acknowledges on an unreliable connection | UC-02
uc-gap-ignored | ignores gaps on an unreliable connection | UC-03 UC-06
uc-gap-consumes | completes the receive of a message that was cut | UC-03
uc-gap-loses-next | loses the message behind a cut one | UC-04
uc-gap-completes-write | completes a WRITE with a gap | UC-05
uc-cut-loses-both | loses an Only that cuts a message | UC-07
uc-no-recv-kills | goes to ERR without a receive on an unreliable connection | UC-08
uc-error-kills | goes to ERR for a bad request on an unreliable connection | UC-09
uc-bad-key-nak | answers NAK on an unreliable connection | UC-09
uc-reserved-nak | answers NAK to reserved opcodes of an unreliable connection | UC-11
uc-waits-for-ack | waits for ACKs on an unreliable connection | UC-12

grh-zero | stores zeroes before a datagram | UD-01
grh4-at-zero | stores the IPv4 header at the beginning | UD-01
ud-byte-len | reports the length of a datagram without its header | UD-01
v6-grh-without-addresses | stores half an IPv6 header before a datagram | UD-02
qkey-ignored | takes any Q_Key | UD-03
ud-src-qp | does not report the sender's queue pair | UD-04
ud-psn-checked | drops datagrams out of sequence | UD-06
ud-no-recv-kills | goes to ERR for a datagram without a receive | UD-07
ud-overrun-kills | goes to ERR for a datagram that does not fit | UD-08
ud-overrun | stores a part of a datagram that does not fit | UD-08
ud-empty-dropped | drops empty datagrams | UD-09
ud-full-dropped | drops datagrams as large as the MTU | UD-10
ud-long-sent | sends datagrams larger than the MTU | UD-11
deth-qkey-own | sends another Q_Key than it was told | UD-12
ud-controlled-qkey-sent | sends a controlled Q_Key | UD-12
ud-first-accepted | takes opcode 0x60 for a datagram | UD-13
multicast-one-copy | gives a multicast datagram to one queue pair | UD-14
multicast-unattached | gives a multicast datagram to everyone | UD-15
ud-source-checked | takes datagrams from one address only | UD-16
gsi-any-qkey | takes any Q_Key at queue pair 1 | UD-17
ud-acks | acknowledges datagrams | UD-18

init-receives | takes requests in INIT | QPS-01
comm-est-missing | raises no COMM_EST | QPS-02
reset-to-rtr | goes from RESET to RTR | QPS-03
modify-needs-nothing | needs no attribute for a transition | QPS-04
refused-modify-applies | applies the attributes that it refuses | QPS-04
modify-takes-all | takes any attribute with a transition | QPS-05
reset-to-err | goes from RESET to ERR | QPS-06
modify-checks-nothing | goes from any state to any | QPS-03 QPS-05 QPS-06
post-in-error-refused | refuses requests in the error state | QPS-08
post-in-error-lost | does not flush requests that come in the error state | QPS-08
unsignaled-flush-silent | does not flush unsignaled requests | QPS-09
reset-flushes | flushes at a reset | QPS-10
reset-keeps-queues | keeps receives over a reset | QPS-10
reset-keeps-msn | keeps the MSN over a reset | QPS-10
sqd-ignored | goes on sending in SQD | QPS-11
sq-drained-missing | raises no SQ_DRAINED | QPS-11
sqd-for-good | does not send again after SQD | QPS-12
sqd-deaf | takes no requests in SQD | QPS-13
send-error-kills | goes to ERR for a send error on an unreliable connection | QPS-14
cq-overrun-silent | drops completions of a full queue | QPS-15
destroyed-qp-lives | answers for a destroyed queue pair | QPS-16
reset-keeps-psn | expects the PSN from before a reset | QPS-17
access-change-ignored | ignores a change of rights in RTS | QPS-18

srq-newest-first | takes the newest receive of a shared queue | SRQ-01
srq-silent | is silent when a shared queue is empty | SRQ-02
srq-credits | sends credits with a shared queue | SRQ-03
srq-limit-missing | raises no SRQ_LIMIT_REACHED | SRQ-04
srq-limit-early | raises SRQ_LIMIT_REACHED one too early | SRQ-04
srq-limit-again | raises SRQ_LIMIT_REACHED again and again | SRQ-05
last-wqe-missing | raises no QP_LAST_WQE_REACHED | SRQ-06
post-recv-beside-srq | takes receives beside a shared queue | SRQ-07

old-keys-work | takes the old keys of windows | MEM-01
bind-keeps-old-key | does not change the key of a window | MEM-01
window-rights-ignored | ignores the rights of a window | MEM-02
window-bounds-ignored | ignores the bounds of a window | MEM-03
window-any-qp | lets any queue pair use a window of type 2 | MEM-04
bind-right-ignored | binds to regions without MW_BIND | MEM-05
bind-local-write-ignored | binds for writing to regions without LOCAL_WRITE | MEM-06
bind-bounds-ignored | binds beyond a region | MEM-07
bind-twice | binds a window that is bound | MEM-08
bind-late | binds after the requests behind the bind | MEM-15
local-inv-of-region | takes LOCAL_INV of a region for done | MEM-10
dereg-with-windows | deregisters a region that has windows | MEM-11
reg-mr-unchecked | registers REMOTE_WRITE without LOCAL_WRITE | MEM-12
lkey-pd-ignored | takes L_Keys of other protection domains | MEM-13
local-write-ignored | stores into regions without LOCAL_WRITE | MEM-14

psn-spaces-shared | counts its own requests among those of the peer | ROB-08
huge-message-done | completes a message of more than 2^31 bytes | ROB-11
qpn-low-byte | looks at the low byte of the destination queue pair only | ROB-09
mtu-1024-only | has a path MTU of 1024 always | ROB-10
dies-of-bad-packets | goes to ERR for a packet that does not parse | ROB-01 ROB-02
`

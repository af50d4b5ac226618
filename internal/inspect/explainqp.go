package inspect

import (
	"fmt"
	"strings"
	"time"

	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/verbs"
)

// tell explains one story.
func tell(s *verbs.Story) Explanation {
	e := Explanation{Subject: subject(s), Story: s, Seen: []string{}, Cause: []string{}, Change: []string{}}
	if s.First.Status != 0 {
		e.setStatus(cq.Status(s.First.Status))
	}
	f := troubles[s.First.Kind]
	if f == nil {
		f = calm
	}
	f(&e, s)
	e.wire(s)
	e.notes(s)
	return e
}

// troubles explain the kinds of trouble that an adapter remembers.
var troubles = map[string]func(*Explanation, *verbs.Story){
	"no_answer":  noAnswer,
	"not_ready":  notReady,
	"refused":    refused,
	"bad_answer": badAnswer,
	"local":      local,
	"request":    request,
	"replay": func(e *Explanation, s *verbs.Story) {
		e.Meaning = fmt.Sprintf("Memory that a READ of the peer was promised went away before its answer was sent, at PSN 0x%06x; the peer gets IBV_WC_REM_ACCESS_ERR.", s.First.PSN)
		e.memory(&s.First, "rkey")
		e.change("deregister a region only when no READ of the peer can be on its way")
	},
	"fatal": func(e *Explanation, _ *verbs.Story) {
		e.Meaning = "The adapter ended the queue pair: its completion queue overflowed, or its memory or rings were damaged. The daemon's log names which."
		e.cause("cqe of the completion queue, when it overflowed: every request that may be outstanding needs a place")
		e.change("make the completion queue as long as all of its queues together, and poll it")
	},
	"asked_for": func(e *Explanation, _ *verbs.Story) {
		e.Meaning = "The program itself moved the queue pair to ERR (modify, or a disconnect of the connection manager): what was posted completed with IBV_WC_WR_FLUSH_ERR, and nothing had failed before."
		e.setStatus(cq.WRFlushErr)
	},
}

// what is a request of this end, in words.
func what(t *verbs.Trouble) string {
	if t.Op == "" {
		return "a request"
	}
	return fmt.Sprintf("%s of %s", t.Op, Count(uint64(t.Size), "byte"))
}

func noAnswer(e *Explanation, s *verbs.Story) {
	t, a := &s.First, &s.Attr
	e.Meaning = fmt.Sprintf("The peer did not acknowledge PSN 0x%06x (%s) after %s; the requests behind it were flushed.", t.PSN, what(t), Count(uint64(t.Retries), "retry"))
	each := bth.AckTimeout(a.Timeout)
	e.cause("retry_cnt = %d, timeout = %d (%v): given up after about %v", t.Retries, a.Timeout, each, time.Duration(t.Retries+1)*each)
	switch {
	case t.Why == "gap":
		e.cause("path_mtu = %d: the peer hears this end and asked for PSN 0x%06x each time, but that packet never arrives whole", s.QP.PathMTU, t.PSN)
		e.change("look for a link on the way whose MTU is too small for path_mtu %d (ping -M do -s %d), or lower path_mtu at both ends", s.QP.PathMTU, s.QP.PathMTU+60)
	case t.Heard == 0:
		e.cause("dest_qp_num = 0x%06x and dgid = %s: nothing at all was ever received from there", s.QP.PeerQPN, address(s.QP.Peer))
		e.change("compare dest_qp_num and dgid with what the peer says of itself, and rq_psn of the peer (this end's sq_psn)")
		e.change("see that the peer is in RTR before this end sends, that it still runs, and that no firewall stops UDP port 4791")
	case s.QP.SentMsgs == 0:
		e.cause("%s came from the peer, but none acknowledged anything: its acknowledgements are lost on the way, or its rq_psn is not the sq_psn = 0x%06x here", Count(t.Heard, "packet"), s.QP.SQPSN)
		e.change("softroce explain 0x%06x at the peer shows what it did with these packets: duplicates mean that it took them, and its answers are lost; else give it this end's sq_psn as its rq_psn", s.QP.PeerQPN)
	default:
		e.cause("%s had come from the peer before: it went away, or the way to it broke, or timeout is shorter than its pauses", Count(t.Heard, "packet"))
		e.change("see whether the peer's program and its queue pair still live (softroce explain 0x%06x there)", s.QP.PeerQPN)
		e.change("raise timeout (14 is 67 ms, 18 is 1.07 s) or retry_cnt (at most 7) where the peer is only slow")
	}
}

func notReady(e *Explanation, s *verbs.Story) {
	t := &s.First
	each := bth.RNRTimerDuration(t.RNRTimer)
	e.Meaning = fmt.Sprintf("The peer had no receive posted for PSN 0x%06x (%s), each time it was asked.", t.PSN, what(t))
	e.cause("rnr_retry = %d at this end: tried %s", t.Retries, Count(uint64(t.Retries)+1, "time"))
	e.cause("min_rnr_timer = %d at the peer: it asks to wait %v each time", t.RNRTimer, each)
	e.change("let the peer post receives before this end sends, and keep some posted")
	e.change("or set rnr_retry to 7, which waits for ever, or raise the peer's min_rnr_timer")
}

func refused(e *Explanation, s *verbs.Story) {
	t := &s.First
	n := bth.Syndrome(t.Syndrome)
	e.Meaning = fmt.Sprintf("The peer refused PSN 0x%06x (%s): %v.", t.PSN, what(t), n)
	peer := fmt.Sprintf("0x%06x", s.QP.PeerQPN)
	switch n {
	case bth.NAKRemoteAccess:
		e.cause("%s", remoteRange(t))
		e.cause("access of the region at the peer: it must grant %s", rightOf(t.Op))
		e.change("compare rkey, remote_addr and length with what the peer registered, and that it is registered still, in the peer's protection domain")
		e.change("register it there with %s; softroce explain %s at the peer says which of these it was", strings.ToUpper("ibv_access_"+rightOf(t.Op)), peer)
	case bth.NAKInvalidRequest:
		e.mtu(s, int(t.Size) > 256)
		if r := rightOf(t.Op); r != "" {
			e.cause("qp_access_flags of the peer: without %s it refuses every %s", r, t.Op)
		}
		if strings.HasPrefix(t.Op, "SEND") || strings.HasSuffix(t.Op, "IMM") {
			e.cause("the receive at the peer: it must have room for the %s", Count(uint64(t.Size), "byte"))
		}
		if strings.HasPrefix(t.Op, "ATOMIC") {
			e.cause("remote_addr = %#x: it must be a multiple of 8", t.Addr)
		}
		if strings.HasPrefix(t.Op, "ATOMIC") || t.Op == "RDMA_READ" {
			e.cause("max_rd_atomic = %d here: not more than max_dest_rd_atomic at the peer", s.Attr.MaxRDAtomic)
		}
		e.change("compare path_mtu, qp_access_flags and the sizes of receives at both ends; softroce explain %s at the peer says which it was", peer)
	case bth.NAKRemoteOperational:
		e.cause("the peer's own receive buffer: its lkey, range or right is wrong there")
		e.change("look at the lkey and addr that the peer posts its receives with")
	default:
		e.cause("a NAK code that the specification does not have")
	}
}

// remoteRange is memory that a request names at the peer.
func remoteRange(t *verbs.Trouble) string {
	if t.Key == 0 && t.Length == 0 {
		return "rkey, remote_addr and length of the request (keys are shown to their own user alone)"
	}
	return fmt.Sprintf("rkey = 0x%08x, remote_addr = %#x, length = %d", t.Key, t.Addr, t.Length)
}

// rightOf is the right at the peer that a verb needs; "" for none.
func rightOf(op string) string {
	switch {
	case strings.HasPrefix(op, "RDMA_WRITE"):
		return "remote_write"
	case op == "RDMA_READ":
		return "remote_read"
	case strings.HasPrefix(op, "ATOMIC"):
		return "remote_atomic"
	}
	return ""
}

// mtu names the path MTUs, where they are or may be the cause.
func (e *Explanation) mtu(s *verbs.Story, may bool) {
	switch {
	case s.PeerMTU != 0:
		e.cause("path_mtu: the peer sends packets of %d bytes, this queue pair has path MTU %d", s.PeerMTU, s.QP.PathMTU)
	case may:
		e.cause("path_mtu = %d: this queue pair sends packets of %d bytes, and a peer with another path MTU refuses the first one", s.QP.PathMTU, s.QP.PathMTU)
	}
}

func badAnswer(e *Explanation, s *verbs.Story) {
	t := &s.First
	e.Meaning = fmt.Sprintf("The peer's answer (%s) at PSN 0x%06x does not belong to the request (%s).", t.Opcode, t.PSN, what(t))
	e.mtu(s, t.Op == "RDMA_READ")
	e.change("give both ends the same path_mtu, and see that no second connection uses the peer's queue pair number")
}

// local explains a request of this end that could not be carried out.
func local(e *Explanation, s *verbs.Story) {
	t := &s.First
	e.Meaning = fmt.Sprintf("This end could not carry out %s at PSN 0x%06x; nothing is wrong with the peer.", what(t), t.PSN)
	switch t.Why {
	case "no_reads":
		e.cause("max_rd_atomic = 0: the connection allows no READ and no atomic")
		e.change("set max_rd_atomic at RTS here, and max_dest_rd_atomic at RTR at the peer, to 1 or more")
	case "no_ah":
		e.cause("ah = %d: the protection domain has no such address handle (destroyed, or of another domain)", t.Key)
		e.change("keep an address handle until the datagrams that name it have completed")
	case "datagram":
		e.cause("length = %d: a datagram is one packet, and the path MTU of its address handle is smaller", t.Size)
		e.change("send at most active_mtu bytes (softroce devinfo)")
	case "bind":
		e.cause("the key, the range or the rights of the bind, invalidation or fast registration")
		e.change("look at the region's mw_bind right, its range, and whether the key is in use already")
	default:
		e.memory(t, "lkey")
		e.change("compare lkey, addr and length of the request's buffers with the region, and see that it is still registered")
	}
}

// memory says which key did not grant which range, and what it does grant.
func (e *Explanation) memory(t *verbs.Trouble, key string) {
	name := fmt.Sprintf("%s = 0x%08x", key, t.Key)
	if t.Key == 0 && t.Addr == 0 {
		name = key + " (shown to its own user alone)"
	}
	asked := fmt.Sprintf("addr = %#x, length = %d", t.Addr, t.Length)
	switch t.Why {
	case "key":
		e.cause("%s: no region or window has this key now (wrong, or deregistered); asked for was %s", name, asked)
	case "pd":
		e.cause("%s: it is of another protection domain than the queue pair", name)
	case "window_qp":
		e.cause("%s: the window is bound to another queue pair", name)
	case "rights":
		e.cause("%s: its access is %s, and this needs %s; asked for was %s", name, rightsText(t.Has), rightsText(t.Need), asked)
	case "bounds":
		e.cause("%s covers %s from %#x, and %s reaches outside", name, Count(t.Covers, "byte"), t.Base, asked)
	case "memory_gone":
		e.cause("%s: the memory behind it cannot be reached any more (%s)", name, asked)
	case "short_list":
		e.cause("the buffers of the request are shorter than the message")
	}
}

func rightsText(a uint32) string {
	if r := rights(verbs.Access(a)); len(r) > 0 {
		return strings.Join(r, ",")
	}
	return "local read only"
}

// request explains what this end refused of the peer.
func request(e *Explanation, s *verbs.Story) {
	t := &s.First
	e.Meaning = fmt.Sprintf("This end refused %s of the peer at PSN 0x%06x", t.Opcode, t.PSN)
	if t.Syndrome != 0 {
		e.Meaning += fmt.Sprintf(" with %v", bth.Syndrome(t.Syndrome))
	}
	e.Meaning += ", and the connection ended."
	switch t.Why {
	case "mtu":
		e.mtu(s, false)
		e.change("set the same path_mtu at both ends at RTR: the smaller of the two active_mtu (softroce devinfo)")
	case "length":
		e.cause("the packet's length (%s), its pad or its DMA length contradict each other or the path MTU %d", Count(uint64(t.Size), "byte"), s.QP.PathMTU)
	case "recv_short":
		e.cause("the posted receive has %s of room, and the message brought %d so far", Count(uint64(t.Room), "byte"), t.Size)
		e.change("post receives as long as the longest message that the peer sends")
	case "disabled":
		e.cause("qp_access_flags = %#x (%s): the operation needs %s", s.Attr.AccessFlags, rightsText(t.Has), rightsText(t.Need))
		e.change("set qp_access_flags with it at INIT or RTR")
	case "reads_full":
		e.cause("max_dest_rd_atomic = %d: the peer asked for more READs and atomics at a time", s.Attr.MaxDestRDAtomic)
		e.change("raise max_dest_rd_atomic here, or lower max_rd_atomic at the peer to it")
	case "succession":
		e.cause("the packet neither begins a message nor goes on with the one in progress: rq_psn here is not the sq_psn that the peer began with, or two peers use this queue pair")
		e.change("compare rq_psn with the peer's sq_psn, and connect a queue pair to one peer only")
	case "unsupported":
		e.cause("an operation that softroce does not have")
	case "align":
		e.cause("remote_addr = %#x: an atomic's address is a multiple of 8", t.Addr)
	case "invalidate":
		e.cause("the key 0x%08x of the SEND with Invalidate is none that the peer may invalidate", t.Key)
	default:
		e.memory(t, map[bool]string{true: "lkey", false: "rkey"}[bth.Syndrome(t.Syndrome) == bth.NAKRemoteOperational])
		e.change("compare it with what the program registered and told the peer")
	}
}

// calm explains a queue pair with which nothing went wrong.
func calm(e *Explanation, s *verbs.Story) {
	switch s.QP.State {
	case "RESET", "INIT":
		e.Meaning = "Nothing has failed. The queue pair is not connected yet: it drops what arrives, and sends nothing."
	case "RTR":
		e.Meaning = "Nothing has failed. The queue pair receives; it sends nothing before it is in RTS."
	case "ERR":
		e.Meaning = "The queue pair is in ERR, and the adapter remembers no reason: it was ended with a memory fault, or with a damaged ring, which the log names."
	default:
		e.Meaning = "Nothing has failed."
	}
	if s.QP.RcvdMsgs == 0 && s.QP.Type == "RC" {
		for _, o := range s.Odd {
			if o.Verdict == "out_of_sequence" || o.Verdict == "drop_waiting" {
				e.cause("rq_psn = 0x%06x: the peer's packets have other numbers (0x%06x), and not one was taken", s.QP.RQPSN, o.PSN)
				e.change("give this end the peer's sq_psn as rq_psn at RTR")
				break
			}
		}
	}
	if s.QP.SendQueued > 0 {
		e.seen("%s", waitText(&s.QP))
	}
}

// notes are what slows a connection down, whether it failed or not.
func (e *Explanation) notes(s *verbs.Story) {
	longest := bth.RNRTimerDuration(0)
	if s.QP.SentRNRs > 0 && s.Attr.MinRNRTimer == 0 {
		e.cause("min_rnr_timer = 0 here: that stands for %v, the longest wait, which the peer keeps each time no receive is posted", longest)
		e.change("set min_rnr_timer at RTR: 1 is 10µs, 12 is 640µs, 31 is 491.52ms")
	}
	if n := bth.Syndrome(s.NAKRcvd.Syndrome); n.IsRNR() && n.RNRTimer() == 0 {
		e.cause("the peer's min_rnr_timer was left at 0: each RNR NAK of it means a wait of %v", longest)
		e.change("set min_rnr_timer at the peer, or let it post receives in time")
	}
	if s.First.Kind != "bad_answer" && s.First.Why != "mtu" && s.First.Kind != "refused" {
		e.mtu(s, false)
	}
}

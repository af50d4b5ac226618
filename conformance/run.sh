#!/bin/bash
# The conformance suite against softroce: two network namespaces joined by a veth pair, the daemon and the agent in one,
# the tester in the other; then an adapter inside of the agent's own process. The results land in DIR (bin/conformance) as
# JSON and JUnit's XML.
#
#   run.sh [-r] [-o DIR] [-b BACKEND] [FLAGS OF softroce conformance run...]
#
# -b takes another backend of the daemon than UDP sockets: packet, or tun, behind a host that forwards.
# -r writes DIR/report.html, too, of these results, of those of the other backends in DIR, and of the committed ones.
# The status is 0 when every run's is 0: each must passes that conformance/exceptions/BACKEND.txt does not name.
set -euo pipefail

top=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=router.sh
. "$top/conformance/router.sh"
report='' out=$top/bin/conformance backend=udp
while [[ ${1-} == -[rob] ]]; do
    case $1 in
    -r) report=1 ;;
    -o)
        out=$2
        shift
        ;;
    -b)
        backend=$2
        shift
        ;;
    esac
    shift
done

if ((EUID != 0)) || ! command -v ip >/dev/null || ! command -v nsenter >/dev/null; then
    echo "conformance: needs root (network namespaces, a packet socket), ip and nsenter" >&2
    exit 2
fi

mkdir -p "$out"
out=$(cd "$out" && pwd)
run=$(mktemp -d "${TMPDIR:-/tmp}/softroce-conformance.XXXXXX")
name=softroce-conformance-$$
target=$name-target tester=$name-tester
pids=()

# shellcheck disable=SC2317 # the trap calls it
cleanup() {
    local pid ns
    for pid in "${pids[@]}"; do
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    for ns in "$target" "$tester"; do
        ip netns del "$ns" 2>/dev/null || true
    done
    rm -rf "$run"
}
trap cleanup EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# Not `ip netns exec`: that mounts /sys afresh, for which a container may lack the right.
in_ns() {
    local ns=$1
    shift
    nsenter --net="/run/netns/$ns" "$@"
}

# What is started ends with this script, whatever ends the script.
start() {
    local log=$1
    shift
    nsenter --net="/run/netns/$target" setpriv --pdeathsig KILL "$@" >"$run/$log" 2>&1 &
    pids+=($!)
}

# Ends what was started last.
stop_last() {
    kill "${pids[-1]}" 2>/dev/null || true
    wait "${pids[-1]}" 2>/dev/null || true
    unset 'pids[-1]'
}

# Waits until a log says a word, as long as its program lives.
await() {
    local log=$1 word=$2 pid=${pids[-1]} n
    for ((n = 0; n < 300; n++)); do
        if grep -q "$word" "$run/$log"; then return; fi
        if ! kill -0 "$pid" 2>/dev/null; then break; fi
        sleep 0.1
    done
    echo "conformance: ${log%.log} does not serve:" >&2
    cat "$run/$log" >&2
    exit 2
}

addr4=198.18.78.1 addr6=fd5c:4792::1
make_link() {
    local ns n=1
    ip netns add "$target"
    ip netns add "$tester"
    ip link add veth0 mtu 9000 netns "$target" type veth peer name veth0 mtu 9000 netns "$tester"
    for ns in "$target" "$tester"; do
        in_ns "$ns" ip addr add "198.18.78.$n/24" dev veth0
        if [[ -e /proc/sys/net/ipv6 ]]; then in_ns "$ns" ip addr add "fd5c:4792::$n/64" dev veth0 nodad; fi
        in_ns "$ns" ip link set lo up
        in_ns "$ns" ip link set veth0 up
        n=$((n + 1))
    done
}

# Makes a TUN link in the target's namespace, which routes between it and the tester.
route_to_tun() {
    in_ns "$target" ip tuntap add dev roce0 mode tun multi_queue
    in_ns "$target" ip link set roce0 mtu 9000 up
    in_ns "$target" ip addr add 198.18.79.1/24 dev roce0
    in_ns "$target" sysctl -qw net.ipv4.ip_forward=1
    hop_rules | in_ns "$target" nft -f -
    in_ns "$tester" ip route add 198.18.79.0/24 via 198.18.78.1
    if [[ -e /proc/sys/net/ipv6 ]]; then
        in_ns "$target" ip addr add fd5c:4793::1/64 dev roce0 nodad
        in_ns "$target" sysctl -qw net.ipv6.conf.all.forwarding=1
        in_ns "$tester" ip route add fd5c:4793::/64 via fd5c:4792::1
    fi
}

# Runs the suite: name of the files, what reports call the target, its address, further flags. The tester stays on one CPU:
# a veth keeps the order of packets only as long as they are sent from the same one.
suite() {
    local file=$1 called=$2 addr=$3 status=0
    shift 3
    rm -f "$out/$file.json" "$out/$file.xml" # of an earlier run
    echo
    in_ns "$tester" taskset -c "$cpu" "$run/softroce" conformance run --target "$addr" --name "$called" "${exceptions[@]}" \
        --json "$out/$file.json" --junit "$out/$file.xml" "$@" || status=$?
    if ((status > worst)); then worst=$status; fi
    if ((status < 2)); then results+=("$out/$file.json"); fi
}

cd "$top"
"${GO:-go}" build -o "$run/softroce" ./cmd/softroce
make_link
worst=0 results=() exceptions=()
if [[ -e $top/conformance/exceptions/$backend.txt ]]; then exceptions=(--exceptions "$top/conformance/exceptions/$backend.txt"); fi
cpu=$(taskset -cp $$ | sed 's/.*: //; s/[-,].*//') # the first that we may use

addrs=(--addr "$addr4") testers=(--tester 198.18.78.2) listen=0.0.0.0:4792
if [[ -e /proc/sys/net/ipv6 ]]; then
    addrs+=(--addr "$addr6")
    testers+=(--tester fd5c:4792::2)
    listen="[::]:4792"
fi
extra=() agent4=() agent6=()
case $backend in
tun)
    over="a TUN link" file=tun- extra=(--tun roce0)
    addr4=198.18.79.2 addr6=fd5c:4793::2
    addrs=(--addr "$addr4")
    if [[ -e /proc/sys/net/ipv6 ]]; then addrs+=(--addr "$addr6"); fi
    agent4=(--agent 198.18.78.1:4792) agent6=(--agent '[fd5c:4792::1]:4792')
    route_to_tun
    ;;
udp) over=UDP file='' ;;
*) over="backend $backend" file=$backend- ;;
esac
start daemon.log "$run/softroce" daemon --backend "$backend" "${extra[@]}" "${addrs[@]}" --socket "$run/socket"
await daemon.log msg=serving
start agent.log "$run/softroce" conformance agent "${testers[@]}" --socket "$run/socket" --listen "$listen"
await agent.log 'agent of'
suite "daemon-${file}ipv4" "softroce daemon over $over, IPv4" "$addr4" "${agent4[@]}" "$@"
if [[ -e /proc/sys/net/ipv6 ]]; then suite "daemon-${file}ipv6" "softroce daemon over $over, IPv6" "$addr6" "${agent6[@]}" "$@"; fi
stop_last
stop_last

if [[ $backend == udp ]]; then
    start inprocess.log "$run/softroce" conformance agent "${testers[@]}" "${addrs[@]}" --listen "$listen"
    await inprocess.log 'agent of'
    suite inprocess-ipv4 'softroce in-process, IPv4' "$addr4" "$@"
    stop_last
fi

if [[ -n $report ]]; then
    for file in "$out"/daemon-{packet,tun}-ipv[46].json "$top"/conformance/results/*.json; do
        if [[ -e $file ]]; then results+=("$file"); fi
    done
    "$run/softroce" conformance report --out "$out/report.html" "${results[@]}"
    echo "conformance: $out/report.html"
fi
exit "$worst"

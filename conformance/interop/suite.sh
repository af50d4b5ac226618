# shellcheck shell=bash
# Sourced by run.sh: the conformance suite against the guest's rdma_rxe, by the agent that the guest runs. What it found
# before is in ../results; what differs from that is a failure.

# What the kernel does not survive: over IPv6 it panics at datagrams that are too short (docs/rxe-deviations.md).
DEADLY6=FRM-10,ROB-01

# suite [write]: both families. Afterwards the guest is of no use to anybody else.
suite() {
    local status=0
    if ! { innet ip addr add 10.77.0.2/24 dev br0 && innet ip addr add fd77::2/64 dev br0 nodad; } >>"$LOGS/network.log" 2>&1; then
        cannot "no address for the tester: $(tail -n 1 "$LOGS/network.log")"
    fi
    suite_run "${1-}" rxe-6.1 --target 10.77.0.11 --local 10.77.0.2 || status=1
    suite_run "${1-}" rxe-6.1-ipv6 --target fd77::11 --local fd77::2 --except "$DEADLY6" || status=1
    return $status
}

suite_run() {
    local write=$1 name=$2 golden=$REPO/conformance/results/$2.json status=0 begun=$SECONDS
    shift 2
    set -- "$@" --wait 3s --quiet 300ms --name "kernel rdma_rxe ${name#rxe-}"
    if [ -n "$write" ]; then
        mkdir -p "${golden%/*}"
        set -- "$@" --json "$golden"
    else
        set -- "$@" --json "$LOGS/$name.json" --golden "$golden"
    fi
    spawn nsenter --net="/run/netns/$NS" setpriv --pdeathsig TERM "$RUN/bin/softroce" conformance run "$@" \
        >"$LOGS/$name.log" 2>&1 </dev/null
    await "$SPAWNED" || status=$?
    if [ -n "$write" ] && [ $status -le 1 ]; then
        say "conformance/$name: written into conformance/results/$name.json after $((SECONDS - begun)) s"
        return 0
    fi
    if [ $status = 0 ]; then
        say "conformance/$name: as in conformance/results/$name.json, after $((SECONDS - begun)) s"
        return 0
    fi
    say "conformance/$name: FAILED (status $status, $LOGS/$name.log)"
    grep -E '^[A-Z]+-[0-9]+: ' "$LOGS/$name.log" || tail -n 5 "$LOGS/$name.log"
    return 1
}

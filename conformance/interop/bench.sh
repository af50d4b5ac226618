#!/bin/bash
# softroce beside kernel rdma_rxe, measured in one interleaved run inside the lab's guest. `bench.sh -h` says how to use it.
# Exit status: 0 measured (whatever the targets say), 1 not measured, 2 the lab cannot run here (the reason is printed).
set -euo pipefail
shopt -s nullglob
export LC_ALL=C
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
REPO=$(cd "$HERE/../.." && pwd)
# shellcheck source=machine.sh
. "$HERE/machine.sh"
# shellcheck source=lab.sh
. "$HERE/lab.sh"
# shellcheck source=image.sh
. "$HERE/image.sh"
NAME=bench-rxe
# A CPU that has ERMS makes the kernel copy and clear by `rep movsb` and `rep stosb`, which the emulator does a byte at a
# time. Without, both sides of the comparison copy about as fast as they compute.
# shellcheck disable=SC2034 # read by lab.sh
GUEST_CPU=max,erms=off

usage() {
    cat <<-'U'
	usage: bench.sh [-r ROUNDS] [-w DIR] [-b FILE] [-d FLAGS] [-o DIR] [REGEXP]
	  REGEXP    measure only what it matches, as 'WRITE 64 KiB' or latency
	  -r ROUNDS rounds of the interleaved run (default 5)
	  -w DIR    write the table into DIR/performance.md and DIR/bench-rxe.json (default: print only)
	  -b FILE   measure this softroce command, a static binary, instead of building it
	  -d FLAGS  further flags of both daemons, as '--workers 1'
	  -o DIR    put logs there (default: a directory of their own under TMPDIR)
	U
}

# args is read by lab.sh, too.
args=() program='' out=''
while getopts r:w:b:d:o:h option; do
    case $option in
        r) args+=(-rounds "$OPTARG") ;;
        w) args+=(-out "$OPTARG") ;;
        b) program=$OPTARG ;;
        d) args+=(-daemon-flags "$OPTARG") ;;
        o) out=$OPTARG ;;
        h) usage; exit 0 ;;
        *) usage >&2; exit 2 ;;
    esac
done
shift $((OPTIND - 1))
[ $# -le 1 ] || { usage >&2; exit 2; }
[ $# = 0 ] || args+=(-run "$1")
[ -z "$program" ] || [ -x "$program" ] || cannot "-b $program is not a program"
command -v go >/dev/null || cannot "Go is not installed (or not in PATH)"

build_bench() {
    cd "$REPO" || return
    export CGO_ENABLED=0
    go build -o "$RUN/bin/benchrxe" ./conformance/interop/benchrxe >"$LOGS/build.log" 2>&1 || return 1
    if [ -n "$program" ]; then
        install -m 755 "$program" "$RUN/bin/softroce" >>"$LOGS/build.log" 2>&1
    else
        go build -o "$RUN/bin/softroce" ./cmd/softroce >>"$LOGS/build.log" 2>&1
    fi
}

start=$SECONDS
trap cleanup EXIT
trap 'say "unexpected: line $LINENO: $BASH_COMMAND ended with $?"' ERR
trap 'exit 130' INT
trap 'exit 143' TERM HUP

check_machine
make_run_dir "$out"
spawn build_bench
programs=$SPAWNED
install_packages
ensure_image ''
await "$programs" || { cat "$LOGS/build.log" >&2; echo "$NAME: the Go programs do not build, see above" >&2; exit 1; }
make_network 1
start_guest 1
await_guest 1
say "guest ready after $((SECONDS - start)) s (kernel $KVER, software emulation)"

spawn nsenter --net="/run/netns/$NS" setpriv --pdeathsig TERM "$RUN/bin/benchrxe" -softroce "$RUN/bin/softroce" "${args[@]}" </dev/null 6>&- 7<&-
status=0
await "$SPAWNED" || status=$?
say "took $((SECONDS - start)) s"
exit "$status"

#!/bin/bash
# The interoperability lab: softroce against Linux kernel rdma_rxe in a QEMU guest. `run.sh -h` says how to use it.
# Exit status: 0 every case passed, 1 a case failed, 2 the lab cannot run here (the reason is printed), 143 or 130 stopped.
set -euo pipefail
shopt -s nullglob
export LC_ALL=C
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
REPO=$(cd "$HERE/../.." && pwd)
# shellcheck source=machine.sh
. "$HERE/machine.sh"
# shellcheck source=../router.sh
. "$HERE/../router.sh"
# shellcheck source=lab.sh
. "$HERE/lab.sh"
# shellcheck source=image.sh
. "$HERE/image.sh"
# shellcheck source=suite.sh
. "$HERE/suite.sh"

usage() {
    cat <<-'U'
	usage: run.sh [-r] [-k] [-s] [-l] [-c] [-g] [-f] [-p] [-t] [-o DIR] [-b FILE] [REGEXP]
	  REGEXP  run only the cases whose name it matches
	  -r      reference run: a second guest takes softroce's place, so kernel rxe meets kernel rxe
	  -k      keep the captures and logs of passed cases too
	  -s      boot, print how to reach the guest, and wait until interrupted
	  -l      list the cases and stop
	  -c      only the conformance suite against the guest (else it comes last, unless there is a REGEXP)
	  -g      the same, and what it finds is written into conformance/results
	  -f      build the guest's image afresh
	  -p      softroce is on the packet backend (--backend packet)
	  -t      softroce has addresses of its own on a TUN link (--backend tun), to which this side routes
	  -o DIR  put logs and captures there (default: a directory of their own under TMPDIR)
	  -b FILE test this softroce command instead of building it
	U
}

# Read by lab.sh, too: guests, args, program.
guests=1 args=() program='' shell='' list='' fresh='' out='' only='' write='' tun='' packet=''
while getopts rkslcgfpto:b:h option; do
    case $option in
        r) guests=2; args+=(-reference) ;;
        k) args+=(-keep) ;;
        s) shell=yes ;;
        l) list=yes ;;
        c) only=yes ;;
        g) only=yes write=yes ;;
        f) fresh=yes ;;
        p) packet=yes; args+=(-packet) ;;
        t) tun=yes; args+=(-tun roce0) ;;
        o) out=$OPTARG ;;
        b) program=$OPTARG ;;
        h) usage; exit 0 ;;
        *) usage >&2; exit 2 ;;
    esac
done
shift $((OPTIND - 1))
[ $# -le 1 ] || { usage >&2; exit 2; }
[ $# = 0 ] || args+=(-run "$1")
[ -z "$tun$packet" ] || [ "$guests$only" = 1 ] || { usage >&2; exit 2; }
[ -z "$only" ] || [ "$guests$#" = 10 ] || { usage >&2; exit 2; }

[ -z "$program" ] || [ -x "$program" ] || cannot "-b $program is not a program"
command -v go >/dev/null || cannot "Go is not installed (or not in PATH)"
if [ -n "$list" ]; then
    cd "$REPO" && exec go run ./conformance/interop/peer -list "${args[@]}"
fi

start=$SECONDS
trap cleanup EXIT
trap 'say "unexpected: line $LINENO: $BASH_COMMAND ended with $?"' ERR
trap 'exit 130' INT
trap 'exit 143' TERM HUP

check_machine
make_run_dir "$out"
spawn build_programs    # beside packages and image, which mostly wait for the network and the disk
programs=$SPAWNED
install_packages
ensure_image "$fresh"
await "$programs" || { cat "$LOGS/build.log" >&2; echo "interop: the Go programs do not build, see above" >&2; exit 1; }
say "image and programs ready after $((SECONDS - start)) s"

make_network "$guests"
[ -z "$tun" ] || add_tun >>"$LOGS/network.log" 2>&1 || cannot "no TUN link can be routed to: $(tail -n 1 "$LOGS/network.log")"
for ((n = 1; n <= guests; n++)); do start_guest "$n"; done
for ((n = 1; n <= guests; n++)); do await_guest "$n"; done
say "guest ready after $((SECONDS - start)) s (kernel $KVER, software emulation)"

if [ -n "$shell" ]; then
    say "namespace $NS; a command in guest 1: nsenter --net=/run/netns/$NS $RUN/bin/peer -exec 1 'ibv_devinfo'"
    say "a program of this side: nsenter --net=/run/netns/$NS PROGRAM (10.77.0.1, fd77::1); logs in $LOGS; Ctrl-C ends it all"
    spawn sleep infinity
    await "$SPAWNED"
fi

status=0
if [ -z "$only" ]; then
    [ "$guests" = 2 ] || args+=(-softroce "$RUN/bin/softroce")
    start_driver "${args[@]}"
    await "$DRIVER" || status=$?
fi
if [ -n "$only" ] || [ "$guests$#$tun$packet" = 10 ] && [ $status -le 1 ]; then
    suite "$write" || status=1
fi
say "took $((SECONDS - start)) s"
exit "$status"

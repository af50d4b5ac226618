# shellcheck shell=bash
# Sourced by run.sh and bench.sh: one run's directory, namespace, guests and driver, and their end. Everything that a run
# starts is known by pid, dies with the run (PDEATHSIG) and lives in the run's own namespace, so several runs do not meet.
#
#   this side   10.77.0.1,  fd77::1   br0 in the namespace
#   roce0       10.77.1.2, fd77:1::2  softroce's own with run.sh -t, else it has those of this side
#   guest N     10.77.0.1N, fd77::1N  eth0 there, tapN here; rxe GIDs: 0 link-local, 1 IPv4, 2 IPv6
# A second card of each guest reaches its command agent and its peer program from the namespace's loopback, ports
# 2200+N and 2300+N, so that loss on eth0 does not touch the control traffic.

MTU=9000
GUEST_CPU=max      # the emulator's model
RUN='' NS='' DRIVER='' PARTIAL='' LOGS=''
GUESTS=()
declare -A STARTED=()

# Starts a command or function in a process group of its own, which `cleanup` ends as a whole; its pid is in SPAWNED.
spawn() {
    set -m
    "$@" &
    SPAWNED=$!
    set +m
    STARTED[$SPAWNED]=1
}

# Waits for a spawned process and gives its status. Its pid is not ours to end from then on.
await() {
    local status=0
    wait "$1" || status=$?
    unset "STARTED[$1]"
    return $status
}

# Not `ip netns exec`: that mounts /sys afresh, for which a container may lack the right.
innet() { nsenter --net="/run/netns/$NS" "$@"; }

# What a killed run left behind (its lock is free): namespace and directory go, its processes died with it.
sweep() {
    local dir name
    for dir in "${TMPDIR:-/tmp}"/softroce-interop.*/; do
        if [ -e "$dir/lock" ] && flock -xn "$dir/lock" true; then
            name=softroce-interop-${dir##*interop.}
            ip netns del "${name%/}" 2>/dev/null || true
            rm -rf "$dir"
        fi
    done
}

make_run_dir() {
    exec 5>/run/lock/softroce-interop
    flock 5
    sweep
    RUN=$(mktemp -d "${TMPDIR:-/tmp}/softroce-interop.XXXXXX")
    exec 6>"$RUN/lock"
    flock 6
    exec 5>&-
    LOGS=${1:-$RUN-logs}
    mkdir -p "$LOGS" "$RUN/bin"
    LOGS=$(cd "$LOGS" && pwd)
    chmod 755 "$RUN"
}

build_programs() {
    cd "$REPO" || return
    export CGO_ENABLED=0
    go build -o "$RUN/bin/peer" ./conformance/interop/peer >"$LOGS/build.log" 2>&1 || return 1
    if [ -n "$program" ]; then
        install -m 755 "$program" "$RUN/bin/softroce" >>"$LOGS/build.log" 2>&1
    elif [ "$guests" = 1 ]; then
        go build -o "$RUN/bin/softroce" ./cmd/softroce >>"$LOGS/build.log" 2>&1
    fi
}

make_network() {
    local n
    local name=softroce-interop-${RUN##*.}
    ip netns add "$name" 2>"$LOGS/netns.log" ||
        cannot "no network namespace can be made: $(cat "$LOGS/netns.log") (a container needs CAP_SYS_ADMIN and CAP_NET_ADMIN)"
    NS=$name
    if ! add_links "$1" >"$LOGS/network.log" 2>&1; then
        cannot "no bridge or tap can be made in a namespace: $(tail -n 1 "$LOGS/network.log")"
    fi
}

add_links() {
    innet ip link set lo up &&
        innet ip link add br0 type bridge mcast_snooping 0 &&
        innet ip addr add 10.77.0.1/24 dev br0 &&
        innet ip addr add fd77::1/64 dev br0 nodad || return
    for ((n = 1; n <= $1; n++)); do
        innet ip tuntap add "tap$n" mode tap &&
            innet ip link set "tap$n" mtu "$MTU" master br0 up || return
    done
    innet ip link set br0 mtu "$MTU" up
}

# A link for softroce's own addresses, 10.77.1.2 and fd77:1::2, to which the namespace routes; 10.77.2.2 is that of a daemon
# in the guest.
add_tun() {
    innet ip tuntap add dev roce0 mode tun multi_queue &&
        innet ip link set roce0 mtu "$MTU" up &&
        innet ip addr add 10.77.1.1/24 dev roce0 &&
        innet ip addr add fd77:1::1/64 dev roce0 nodad &&
        innet ip route add 10.77.2.0/24 via 10.77.0.11 dev br0 onlink &&
        innet sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.br0.send_redirects=0 &&
        hop_rules | innet nft -f -
}

start_guest() {
    local n=$1
    rm -f "$LOGS/guest$n.console"
    TMPDIR=$RUN spawn nsenter --net="/run/netns/$NS" setpriv --pdeathsig KILL qemu-system-x86_64 \
        -accel tcg,thread=multi,tb-size=512 -cpu "$GUEST_CPU" -smp 2 -m 1024 -nodefaults -no-user-config -no-reboot -display none \
        -kernel "$IMAGE/vmlinux" -initrd "$IMAGE/initrd" \
        -append "console=ttyS0 quiet panic=-1 mitigations=off nokaslr tsc=reliable no_timer_check audit=0 apparmor=0 rcupdate.rcu_expedited=1 lab.n=$n lab.mtu=$MTU" \
        -drive file="$IMAGE/root.ext4",if=none,id=root,format=raw,snapshot=on -device virtio-blk-pci,drive=root \
        -netdev tap,id=net,ifname="tap$n",script=no,downscript=no \
        -device virtio-net-pci,netdev=net,mac=52:54:00:77:00:1"$n",host_mtu="$MTU",romfile= \
        -netdev user,id=mgmt,restrict=on,net=10.78.0.0/24,hostfwd=tcp:127.0.0.1:$((2200 + n))-10.78.0.15:22,hostfwd=tcp:127.0.0.1:$((2300 + n))-10.78.0.15:5000 \
        -device virtio-net-pci,netdev=mgmt,mac=52:54:00:78:00:1"$n",romfile= \
        -virtfs local,path="$HERE/guest",mount_tag=lab,security_model=none,readonly=on \
        -virtfs local,path="$HERE/../agent",mount_tag=agent,security_model=none,readonly=on \
        -device virtio-rng-pci -chardev file,id=con,path="$LOGS/guest$n.console" -serial chardev:con \
        </dev/null >"$LOGS/guest$n.qemu" 2>&1 6>&- 7<&-
    GUESTS[n]=$SPAWNED
}

await_guest() {
    local n=$1 deadline=$((SECONDS + 300)) pid=${GUESTS[$1]}
    until grep -q "lab: guest $n ready" "$LOGS/guest$n.console" 2>/dev/null; do
        kill -0 "$pid" 2>/dev/null || {
            tail -n 5 "$LOGS/guest$n.qemu" "$LOGS/guest$n.console" >&2 || true
            cannot "guest $n ended while it booted (logs in $LOGS)"
        }
        [ $SECONDS -lt $deadline ] || cannot "guest $n was not ready after 300 s (see $LOGS/guest$n.console)"
        sleep 0.1
    done
    ! grep -q 'lab: failed' "$LOGS/guest$n.console" ||
        cannot "guest $n: $(grep -m 1 'lab: failed' "$LOGS/guest$n.console")"
}

start_driver() {
    spawn nsenter --net="/run/netns/$NS" setpriv --pdeathsig TERM "$RUN/bin/peer" -logs "$LOGS" -state "$RUN" "$@" </dev/null 6>&- 7<&-
    DRIVER=$SPAWNED
}

stop() {
    local pid
    for pid in "$@"; do kill -- "-$pid" 2>/dev/null || true; done
    for pid in "$@"; do
        for _ in {1..100}; do
            kill -0 -- "-$pid" 2>/dev/null || break
            sleep 0.1
        done
        kill -KILL -- "-$pid" 2>/dev/null || true
        await "$pid" 2>/dev/null || true
    done
}

# Runs once, whatever ended the run. What a passed run wrote is of no use and goes.
cleanup() {
    local status=$?
    trap - EXIT
    trap '' INT TERM HUP
    [ -z "${STARTED[${DRIVER:-none}]:-}" ] || stop "$DRIVER"     # first: it puts the guests in order
    stop "${!STARTED[@]}"
    [ -z "$NS" ] || ip netns del "$NS" 2>/dev/null || true
    [ -z "$PARTIAL" ] || rm -rf --one-file-system "$PARTIAL"
    [ -z "$RUN" ] || rm -rf "$RUN"
    if [ -n "$LOGS" ] && ! rmdir "$LOGS" 2>/dev/null; then
        if [ $status = 0 ] && [ "$LOGS" = "$RUN-logs" ] && [[ " ${args[*]} " != *' -keep '* ]]; then
            rm -rf "$LOGS"
        else
            say "logs in $LOGS"
        fi
    fi
    exit $status
}

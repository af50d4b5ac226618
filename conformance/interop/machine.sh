# shellcheck shell=bash
# Sourced by run.sh and bench.sh: what the machine must be, and what is installed on it.

NAME=interop # of the run, in front of what it says
say() { printf '%s: %s\n' "$NAME" "$*"; }
cannot() {
    printf '%s: cannot run here: %s\n' "$NAME" "$*" >&2
    exit 2
}

# Debian package and a file that it brings. The guest's own packages are in image.sh.
PACKAGES="qemu-system-x86:/usr/bin/qemu-system-x86_64 mmdebstrap:/usr/bin/mmdebstrap e2fsprogs:/sbin/mke2fs
    kmod:/sbin/depmod cpio:/usr/bin/cpio xz-utils:/usr/bin/xz iproute2:/sbin/ip util-linux:/usr/bin/setpriv
    nftables:/usr/sbin/nft util-linux:/usr/bin/flock util-linux:/usr/bin/nsenter tcpdump:/usr/bin/tcpdump tshark:/usr/bin/tshark wireshark-common:/usr/bin/mergecap"

check_machine() {
    [ "$(uname -s)" = Linux ] || cannot "needs Linux"
    [ "$(id -u)" = 0 ] || cannot "needs root (network namespaces, a tap, packages)"
    [ -x /usr/bin/apt-get ] && [ -x /usr/bin/dpkg ] ||
        cannot "needs Debian's apt-get and dpkg: the guest is made from Debian packages (tested on Debian 12)"
    [ "$(dpkg --print-architecture)" = amd64 ] ||
        cannot "needs an amd64 machine (this is $(dpkg --print-architecture)): the guest's packages are unpacked on it"
    # shellcheck source=/dev/null
    ID=$(. /etc/os-release && echo "${ID:-}") SUITE=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    [ "$ID" = debian ] && [ -n "$SUITE" ] || cannot "needs Debian (tested on 12), /etc/os-release says ${ID:-nothing}"
    [ -c /dev/net/tun ] || cannot "no /dev/net/tun: the guest's network card is a tap (modprobe tun, or pass the device into the container)"
    local memory
    memory=$(awk '/^MemAvailable:/ {print int($2 / 1024)}' /proc/meminfo)
    [ "$memory" -ge 1500 ] || cannot "needs 1500 MiB of free memory, $memory MiB are available"
}

# One apt-get at a time on a machine: several labs may start together.
install_packages() {
    local missing=() pair log
    for pair in $PACKAGES; do
        [ -e "${pair#*:}" ] || [ -e "/usr${pair#*:}" ] || missing+=("${pair%%:*}")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    say "installing ${missing[*]}"
    log=$(mktemp)
    if ! (
        flock 9
        export DEBIAN_FRONTEND=noninteractive
        apt-get update && apt-get install -y --no-install-recommends "${missing[@]}"
    ) 9>/run/lock/softroce-interop-apt >"$log" 2>&1 </dev/null; then
        tail -n 15 "$log" >&2
        rm -f "$log"
        cannot "apt-get could not install ${missing[*]} (its last lines are above)"
    fi
    rm -f "$log"
}

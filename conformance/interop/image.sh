# shellcheck shell=bash
# Sourced by run.sh: the guest's kernel, initramfs and root file system, from Debian's packages as this machine's
# apt has them. Cached by a stamp of everything that goes in; one directory an image, never changed once named.

GUEST_PACKAGES=rdma-core,ibverbs-utils,rdmacm-utils,ibverbs-providers,perftest,python3-pyverbs,iproute2,iputils-ping
GUEST_PACKAGES+=,ethtool,nftables,socat,kmod,procps,busybox-static
GUEST_SIZE=1500M
# Kernel modules that a guest with virtio devices never loads.
UNUSED_MODULES="drivers/gpu drivers/media drivers/usb drivers/scsi drivers/staging drivers/iio drivers/hid drivers/input
    drivers/mtd drivers/ata drivers/isdn drivers/hwmon drivers/net/wireless drivers/net/ethernet drivers/nvme drivers/md sound
    net/bluetooth net/mac80211 net/wireless fs/xfs fs/btrfs fs/ocfs2 fs/nfs fs/nfsd fs/smb fs/f2fs fs/jfs fs/reiserfs fs/gfs2"

CACHE=${SOFTROCE_INTEROP_CACHE:-${XDG_CACHE_HOME:-/var/cache}/softroce-interop}

apt_sources() {
    local files=(/etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources) f
    for f in "${files[@]}"; do
        if [ -s "$f" ]; then printf '%s\n' "$f"; fi
    done
}

# Leaves the image's path in IMAGE and its kernel's version in KVER, and holds the image against pruning while this
# shell lives. One builder at a time; the others wait for it.
ensure_image() {
    local fresh=$1 stamp sources
    mapfile -t sources < <(apt_sources)
    [ ${#sources[@]} -gt 0 ] || cannot "apt has no sources (/etc/apt/sources.list and sources.list.d are empty)"
    stamp=$({ cat "$HERE/image.sh" "$HERE/guest/boot" "${sources[@]}"; echo "$SUITE"; } | sha256sum | cut -c1-16)
    mkdir -p "$CACHE" || cannot "the cache directory $CACHE cannot be made (set SOFTROCE_INTEROP_CACHE)"
    IMAGE=$CACHE/$stamp
    exec 8>"$CACHE/lock"
    flock 8
    if [ -n "$fresh" ] || [ ! -e "$IMAGE/kver" ]; then
        prune_images
        build_image "${sources[@]}"
    fi
    exec 7<"$IMAGE/kver"
    flock -s 7
    exec 8>&-
    KVER=$(cat "$IMAGE/kver")
}

# Images that no run holds go: a stale one is never used again.
prune_images() {
    local old
    for old in "$CACHE"/*/; do
        if [ ! -e "$old/kver" ] || flock -xn "$old/kver" true; then rm -rf "$old"; fi
    done
}

build_image() {
    local free log=$LOGS/image.log part=$CACHE/part.$$
    free=$(df -Pm "$CACHE" | awk 'NR == 2 {print $4}')
    [ "$free" -ge 4000 ] || cannot "needs 4000 MB in $CACHE, $free MB are free (set SOFTROCE_INTEROP_CACHE)"
    say "building the guest's image in $CACHE (about a minute, once)"
    PARTIAL=$part
    spawn assemble "$part" "$@"
    if ! await "$SPAWNED"; then
        tail -n 15 "$log" >&2
        cannot "the guest's image could not be built (the log's end is above, all of it in $log)"
    fi
    rm -rf "$IMAGE"
    mv "$part" "$IMAGE"
    PARTIAL=''
}

# A process of its own (so that errexit holds in it): root and kernel at the same time, then what needs both.
assemble() {
    local part=$1 root kernel status=0
    shift
    exec >"$LOGS/image.log" 2>&1 </dev/null
    mkdir "$part"
    cd "$part"
    make_root "$@" &
    root=$!
    unpack_kernel &
    kernel=$!
    wait "$root" || status=$?
    wait "$kernel" || status=$?
    [ $status = 0 ] || exit $status
    finish_root
    make_initrd
    rm -rf kernel root
    mv kver.part kver
}

# Debian itself. apt's own proxy and retry settings hold inside, too.
make_root() {
    local options=() line
    while read -r line; do options+=("--aptopt=$line"); done < <(
        apt-config dump --no-empty --format '%F "%v";%n' Acquire::http Acquire::https Acquire::Retries Acquire::Check-Valid-Until)
    mmdebstrap --format=directory --variant=minbase --mode=root --skip=check/qemu --include="$GUEST_PACKAGES" "${options[@]}" \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        --dpkgopt='path-exclude=/usr/share/doc/*' "$SUITE" root "$@"
}

unpack_kernel() {
    local package kver unused
    package=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image-/ {print $2; exit}')
    mkdir -p kernel
    (cd kernel && apt-get -o APT::Sandbox::User=root download "$package" && dpkg-deb -x "$package"_*.deb . && rm ./*.deb)
    kver=$(ls kernel/lib/modules)
    for unused in $UNUSED_MODULES; do rm -rf "kernel/lib/modules/$kver/kernel/$unused"; done
    depmod -b "$PWD/kernel" "$kver"
    # Decompressed here: QEMU starts it directly, which saves the emulated CPU some eight seconds of xz.
    local at
    at=$(grep -aboP -m1 '\xFD7zXZ\x00' "kernel/boot/vmlinuz-$kver" | head -n 1 | cut -d: -f1)
    tail -c +$((at + 1)) "kernel/boot/vmlinuz-$kver" >vmlinux.xz
    xz -dc --single-stream <vmlinux.xz >vmlinux
    rm vmlinux.xz
    echo "$kver" >kver.part
}

finish_root() {
    cp -a kernel/lib/modules root/usr/lib/
    install -m 755 "$HERE/guest/boot" root/boot-lab
    mkdir -p root/{share,lab}
    mke2fs -q -t ext4 -O ^has_journal,^metadata_csum -d root root.ext4 "$GUEST_SIZE"
}

# busybox, the modules that reach /dev/vda, and a few lines of script.
make_initrd() {
    local kver
    kver=$(cat kver.part)
    mkdir -p ird/{bin,mod,proc,dev,root}
    cp root/bin/busybox ird/bin/
    for m in virtio_pci virtio_blk crc32c_generic ext4; do
        modprobe -d "$PWD/kernel" -S "$kver" --show-depends "$m"
    done | awk '$1 == "insmod" && !seen[$2]++ {print $2}' >ird.list
    while read -r ko; do
        cp "$ko" ird/mod/
        basename "$ko"
    done <ird.list >ird/mod/order
    cat >ird/init <<-'I'
	#!/bin/busybox sh
	/bin/busybox mount -t devtmpfs dev /dev
	while read -r m; do /bin/busybox insmod /mod/$m; done </mod/order
	while [ ! -b /dev/vda ]; do /bin/busybox usleep 10000; done
	/bin/busybox mount -t ext4 -o noatime /dev/vda /root
	exec /bin/busybox switch_root /root /boot-lab
	I
    chmod +x ird/init
    (cd ird && find . | cpio -o -H newc --quiet) >initrd
    rm -rf ird ird.list
}

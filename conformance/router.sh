# shellcheck shell=bash
# Sourced by run.sh and interop/lab.sh: a host that routes to a TUN link without being seen.

# Rules for `nft -f -` that add the one that forwarding takes off a packet's TTL or hop limit, where it is looked at: 1 is what
# ibv_rc_pingpong sends with, 64 what the conformance suite expects to arrive.
hop_rules() {
    local n
    printf 'table inet softroce_lab {\n chain pre {\n  type filter hook prerouting priority mangle;\n'
    for n in 64 1; do
        printf '  meta l4proto udp ip ttl %d ip ttl set %d\n' "$n" "$((n + 1))"
        printf '  meta l4proto udp ip6 hoplimit %d ip6 hoplimit set %d\n' "$n" "$((n + 1))"
    done
    printf ' }\n}\n'
}

package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"
)

// besideSetup has a softroce daemon serve in the guest itself, on a TUN link beside kernel rxe, which holds port 4791 of all
// addresses. Kernel rxe takes only what comes by its own device, so what the two send each other goes out by it and comes
// back: this side routes. The guest adds the hop that it takes, as this side does.
const besideSetup = `
modprobe tun
ip tuntap add dev roce0 mode tun multi_queue && ip link set roce0 mtu 9000 up && ip addr add 10.77.2.1/24 dev roce0 || exit 1
for s in net.ipv4.ip_forward=1 net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.eth0.send_redirects=0 net.ipv4.conf.all.accept_local=1; do
	sysctl -qw $s || exit 1
done
printf 'table inet lab {\n chain pre {\n type filter hook prerouting priority mangle;\n meta l4proto udp ip ttl 1 ip ttl set 2\n }\n}\n' >/tmp/hop.nft
nft -f /tmp/hop.nft || exit 1
ip route add 10.77.2.0/24 via 10.77.0.1 dev eth0 metric 500
ip route add default via 10.77.0.1 dev eth0 table 100
ip rule add pref 50 lookup local; ip rule add pref 10 iif roce0 lookup 100; ip rule del pref 0
setsid /tmp/softroce daemon --backend tun --tun roce0 --addr 10.77.2.2 --socket /tmp/softroce.sock >/tmp/softroce.log 2>&1 &
for i in $(seq 100); do grep -q msg=serving /tmp/softroce.log && exit; sleep 0.1; done
cat /tmp/softroce.log; exit 1`

// besideEnd puts the guest as it was.
const besideEnd = `
pkill -x softroce; ip rule add pref 0 lookup local; ip rule del pref 10; ip rule del pref 50; ip route flush table 100
nft delete table inet lab; ip route del 10.77.2.0/24 via 10.77.0.1; ip link del roce0`

// besideRuns are the two roles, by two programs of the guest.
var besideRuns = []struct {
	name, server, client string
	port                 int // on which the server listens, before the client comes
}{
	{
		"guest-server", "ibv_rc_pingpong -d rxe0 -g 1 -p 18600 -s 10000 -n 20 -c",
		"SOFTROCE_SOCKET=/tmp/softroce.sock /tmp/softroce pingpong rc -g 0 -p 18600 -s 10000 -n 20 -c 127.0.0.1",
		18600,
	},
	{
		"guest-client", "env SOFTROCE_SOCKET=/tmp/softroce.sock /tmp/softroce pingpong rc -g 0 -p 18601 -s 10000 -n 20 -c",
		"ibv_rc_pingpong -d rxe0 -g 1 -p 18601 -s 10000 -n 20 -c 127.0.0.1",
		18601,
	},
}

// besideCases are kernel rxe and softroce on one host, the guest.
func (l *lab) besideCases() (cases []testCase) {
	if l.tun == "" {
		return nil
	}
	for _, r := range besideRuns {
		cases = append(cases, testCase{
			name: "beside/" + r.name, about: "softroce in the guest, beside rxe: " + r.client,
			run: func(ctx context.Context, log logf) error {
				if err := l.guest.put(ctx, l.softroce, "/tmp/softroce"); err != nil {
					return err
				}
				defer func() {
					out, _, err := l.guest.exec(context.WithoutCancel(ctx), callLimit, besideEnd)
					log("--- end: %v\n%s", err, out)
				}()
				if err := l.guest.must(ctx, besideSetup); err != nil {
					return err
				}
				out, status, err := l.guest.exec(ctx, pingpongLimit, fmt.Sprintf(
					"(%s >/tmp/beside.log 2>&1 &); "+
						"for i in $(seq 300); do grep -q ':%04X 0*:0000 0A ' /proc/net/tcp /proc/net/tcp6 && break; sleep 0.1; done; %s; rc=$?; "+
						"for i in $(seq 100); do grep -q 'iters in' /tmp/beside.log && break; sleep 0.1; done; echo --- server; cat /tmp/beside.log; exit $rc", r.server, r.port, r.client))
				log("%s", out)
				if err == nil && (status != 0 || strings.Count(out, "20 iters in") != 2) {
					err = fmt.Errorf("ended with %d: %s", status, lastLine(out))
				}
				return err
			},
		})
	}
	return cases
}

// put copies a program into the guest.
func (g guest) put(ctx context.Context, from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", g.agent())
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	line := fmt.Sprintf("head -c %d >%s && chmod 755 %s", len(data), to, to)
	if _, err := io.WriteString(conn, base64.StdEncoding.EncodeToString([]byte(line))+"\n"+string(data)); err != nil {
		return err
	}
	if b, err := io.ReadAll(conn); err != nil || !strings.HasSuffix(strings.TrimSpace(string(b)), "rc=0") {
		return errors.Join(fmt.Errorf("guest %d did not take %s: %s", g.n, from, b), err)
	}
	return nil
}

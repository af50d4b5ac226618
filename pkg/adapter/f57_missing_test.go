package adapter_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/softroce/softroce/internal/testaddr"
	"github.com/softroce/softroce/internal/testnet"
	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/verbs"
)

// Field case F57: a network namespace without IPv6. The adapter works with
// IPv4, and one that is asked for IPv6 says what is missing.
func TestF57NoIPv6(t *testing.T) {
	n := testnet.One(t)
	must(t, n.Do(func() error {
		// What this file means depends on the thread's namespace.
		err := os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0)
		if errors.Is(err, os.ErrNotExist) {
			return nil // a kernel without IPv6: the very case
		}
		return err
	}))
	var a, b *program
	must(t, n.Do(func() error {
		a, b = start(t, on(n.Addr4)).open(t, shape{}), start(t, on(netip.MustParseAddr("127.0.0.2"))).open(t, shape{})
		_, err := tryStart(t, on(netip.IPv6Loopback()))
		if err == nil || !strings.Contains(err.Error(), "::1") || !strings.Contains(err.Error(), "IPv6 is switched off") {
			t.Errorf("an adapter on an IPv6 address: %v, want one that names the address and the reason", err)
		}
		return nil
	}))
	connect(a, b, verbs.RCConfig{})
	alive(a, b)
	alive(b, a)
}

// Field case F57: a user without any privilege. All works, and the start says
// once what is missing and what would give it.
func TestF57Unprivileged(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can become another user; for any other user all tests are this one")
	}
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		must(t, os.Chmod(d, 0o755)) // for anybody
	}
	binary := filepath.Join(dir, "adapter.test")
	copyFile(t, os.Args[0], binary)
	addrs := testaddr.Take(t, 2)
	c := startChild(t, "unprivileged", "", func(cmd *exec.Cmd) {
		cmd.Path, cmd.Dir = binary, dir
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534, NoSetGroups: true}}
	})
	c.say(addrs[0], addrs[1])
	if got := c.line(); got != "works" {
		t.Fatal(got)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	src, err := os.Open(from)
	must(t, err)
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	must(t, err)
	_, err = io.Copy(dst, src)
	must(t, err)
	must(t, dst.Close())
}

// unprivilegedMain runs two adapters in a process without privilege.
func unprivilegedMain(_ string, in *bufio.Reader) error {
	if os.Getuid() == 0 {
		return errors.New("still root")
	}
	var ip [2]string
	if _, err := fmt.Fscan(in, &ip[0], &ip[1]); err != nil {
		return err
	}
	var ends [2]*verbs.QP
	var devs [2]*verbs.Device
	var cqs [2]*verbs.CQ
	var mrs [2]*verbs.MR
	for i := range ends {
		addr, err := netip.ParseAddr(ip[i])
		if err != nil {
			return err
		}
		log := &logBuffer{}
		// More than any host's rmem_max: only a privilege gives that.
		ad, err := adapter.Start(adapter.Config{Addrs: []netip.Addr{addr}, RecvBuffer: 1 << 30, SendBuffer: 1 << 30, Log: log.logger()})
		if err != nil {
			return err
		}
		defer ad.Close()
		for _, missing := range []string{"rmem_max", "wmem_max"} {
			if n := len(log.lines(missing)); n != 1 {
				return fmt.Errorf("the start names %s %d times, want once: %q", missing, n, log)
			}
		}
		if devs[i], err = ad.Open(); err != nil {
			return err
		}
		if ends[i], cqs[i], mrs[i], err = plainQP(devs[i]); err != nil {
			return err
		}
	}
	for i := range ends {
		gid, err := devs[1-i].QueryGID(0)
		if err != nil {
			return err
		}
		if err := ends[i].ConnectRC(verbs.RCPeer{QPN: ends[1-i].Num(), GID: gid}, verbs.RCConfig{}); err != nil {
			return err
		}
	}
	fill(mrs[0].Bytes(), 3)
	_, err := ends[0].PostSend(verbs.SendWR{
		Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mrs[0].SGE(0, mrs[0].Len())},
		RemoteAddr: mrs[1].Addr(), RKey: mrs[1].RKey(),
	})
	if err != nil {
		return err
	}
	if wc, ok := pollOne(cqs[0]); !ok || wc.Status != verbs.WCSuccess || !bytes.Equal(mrs[0].Bytes(), mrs[1].Bytes()) {
		return fmt.Errorf("the WRITE: %v, %v", ok, wc.Status)
	}
	fmt.Println("works")
	return nil
}

// plainQP makes a queue pair, its queue and a region of either kind without a
// test.
func plainQP(dev *verbs.Device) (*verbs.QP, *verbs.CQ, *verbs.MR, error) {
	pd, err := dev.AllocPD()
	if err != nil {
		return nil, nil, nil, err
	}
	cq, err := dev.CreateCQ(16, nil, 0)
	if err != nil {
		return nil, nil, nil, err
	}
	mr, err := pd.RegMR(make([]byte, 100_000), allAccess)
	if err != nil {
		return nil, nil, nil, err
	}
	qp, err := pd.CreateQP(&verbs.QPInitAttr{
		Type: verbs.RC, SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	return qp, cq, mr, err
}

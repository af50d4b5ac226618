package adapter_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"testing"

	"github.com/softroce/softroce/internal/nic"
	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/verbs"
)

// rewritten is the memory that F40 rewrites.
const rewritten = 256 << 10

// Field case F40: a program, in a process of its own, rewrites a READ's source
// at full speed while a peer reads it. No packet arrives with a wrong ICRC,
// for either kind of memory.
func TestF40SourceRewrittenDuringRead(t *testing.T) {
	if inOwnProcess(t) {
		return
	}
	for _, kind := range []string{"shared", "foreign"} {
		t.Run(kind, func(t *testing.T) {
			target := start(t, nil)
			reader := start(t, func(c *adapter.Config) { c.StrictICRC = true })
			a := reader.open(t, shape{size: rewritten})
			c := startChild(t, "scribbler", target.serve(t), nil)
			c.say(kind, uint32(a.qp.Num()), uint32(a.psn), a.gid.Addr())
			var qpn, psn, rkey uint32
			var addr uint64
			line := c.line()
			if _, err := fmt.Sscan(line, &qpn, &psn, &rkey, &addr); err != nil {
				t.Fatalf("the program says %q", line)
			}
			gid := bth.GIDFromAddr(target.Addrs()[0])
			a.connectTo(verbs.RCPeer{QPN: verbs.QPN(qpn), PSN: verbs.PSN(psn), GID: gid}, verbs.RCConfig{})
			mixed := 0
			for range 60 {
				a.do(verbs.SendWR{
					Opcode: verbs.WRRDMARead, SGList: []verbs.SGE{a.mr.SGE(0, rewritten)}, RemoteAddr: addr, RKey: verbs.RKey(rkey),
				})
				if b := a.mr.Bytes(); b[0] != b[rewritten-1] {
					mixed++
				}
			}
			t.Logf("%d of 60 reads saw the memory change", mixed)
			if mixed == 0 {
				t.Error("the program changed nothing during a read: the case shows nothing")
			}
			for name, h := range map[string]*host{"reader": reader, "target": target} {
				w := h.workers()
				if n := w.Stats.Drops[nic.DropICRC]; n != 0 {
					t.Errorf("%s: %d packets with a bad ICRC", name, n)
				}
			}
		})
	}
}

// scribblerMain is the program whose memory is read.
func scribblerMain(socket string, in *bufio.Reader) error {
	var kind, ip string
	var qpn, psn uint32
	if _, err := fmt.Fscan(in, &kind, &qpn, &psn, &ip); err != nil {
		return err
	}
	dev, err := verbs.Open(&verbs.Options{Socket: socket})
	if err != nil {
		return err
	}
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	cq, err := dev.CreateCQ(4, nil, 0)
	if err != nil {
		return err
	}
	mr, err := regionOf(pd, kind)
	if err != nil {
		return err
	}
	qp, err := pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1}})
	if err != nil {
		return err
	}
	addr, err := netip.ParseAddr(ip)
	if err != nil {
		return err
	}
	peer := verbs.RCPeer{QPN: verbs.QPN(qpn), PSN: verbs.PSN(psn), GID: bth.GIDFromAddr(addr)}
	if err := qp.ConnectRC(peer, verbs.RCConfig{PSN: 77}); err != nil {
		return err
	}
	fmt.Println(uint32(qp.Num()), 77, uint32(mr.RKey()), mr.Addr())
	end := make(chan error, 1)
	go func() {
		_, err := in.ReadByte() // until the test closes the pipe, past the line's end
		for err == nil {
			_, err = in.ReadByte()
		}
		end <- err
	}()
	for v := byte(0); ; v++ {
		select {
		case err := <-end:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		default:
		}
		b := mr.Bytes()
		for i := 0; i < len(b); i += 8 {
			// Whole words: a torn word is not what the case is about.
			shm.Word64(b, i).Store(uint64(v) * 0x0101010101010101)
		}
	}
}

func regionOf(pd *verbs.PD, kind string) (*verbs.MR, error) {
	if kind == "foreign" {
		return pd.RegMR(make([]byte, rewritten), allAccess)
	}
	return pd.AllocMR(rewritten, allAccess)
}

package pingpong

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/softroce/softroce/internal/testdevices"
	"github.com/softroce/softroce/pkg/verbs"
)

// Validation is of what was received: a buffer to which nothing came is wrong, as
// far as the message goes.
func TestCheckSeesNothing(t *testing.T) {
	devs, _ := testdevices.Open(t, 1)
	for service, size := range map[Service]int{RC: 3*4096 + 1, UC: 3*4096 + 1, UD: 500, SRQ: 3*4096 + 1} {
		cfg := Config{Service: service, Size: size, Check: true}.withDefaults()
		o := &objects{cfg: &cfg, dev: devs[0]}
		if err := o.open(); err != nil {
			t.Fatalf("%v: %v", service, err)
		}
		msg, want := o.message(), byte(0x7B)
		if service == SRQ {
			want = 0
		}
		if msg[0] != 0 || msg[1] != want || msg[size-2] != want {
			t.Errorf("%v: the message begins with %x and ends with %x", service, msg[:2], msg[size-2:])
		}
		if got, want := len(o.badPages()), (size+os.Getpagesize()-1)/os.Getpagesize(); got != want {
			t.Errorf("%v: before the first message: %d wrong pages, want %d", service, got, want)
		}
		copy(o.received(), o.message())
		if got := o.badPages(); len(got) != 0 {
			t.Errorf("%v: after the message: wrong pages %v", service, got)
		}
		o.close()
	}
}

// A datagram is one packet: what the port's MTU does not take is refused before
// a peer hears of it.
func TestDatagramTooLong(t *testing.T) {
	devs, _ := testdevices.Open(t, 1)
	port, err := devs[0].QueryPort(1)
	if err != nil {
		t.Fatal(err)
	}
	mtu := port.ActiveMTU.Bytes()
	_, err = Run(t.Context(), devs[0], Config{Service: UD, Listener: listen(t), Size: mtu + 1})
	if want := fmt.Sprintf("%d bytes, and the port's MTU is %d", mtu+1, mtu); !errors.Is(err, ErrTooLong) || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}

// Both sides need as many queue pairs; the server, who hears first, says so.
func TestQueuePairsDiffer(t *testing.T) {
	devs, _ := testdevices.Open(t, 2)
	for _, c := range []struct{ server, client int }{{2, 3}, {3, 2}} {
		l := listen(t)
		served := begin(t.Context(), devs[0], Config{Service: SRQ, Listener: l, QPs: c.server, Patience: 300 * time.Millisecond})
		_, err := Run(t.Context(), devs[1], Config{
			Service: SRQ, Host: "127.0.0.1", Port: port(l), QPs: c.client, Patience: 300 * time.Millisecond,
		})
		s := <-served
		want := fmt.Sprintf("the peer has %d queue pairs, not %d: both sides need the same -q", c.client, c.server)
		if err == nil || s.err == nil || !strings.Contains(s.err.Error(), want) {
			t.Errorf("%+v: client: %v, server: %v", c, err, s.err)
		}
	}
}

// A datagram of somebody else who knows the Q_Key is no message of the run.
func TestDatagramOfAStranger(t *testing.T) {
	devs, _ := testdevices.Open(t, 3)
	pd, err := devs[2].AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	cq, err := devs[2].CreateCQ(1, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	qp, err := pd.CreateQP(&verbs.QPInitAttr{
		Type: verbs.UD, SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxSendSGE: 1, MaxInlineData: 8},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := qp.ReadyUD(qkey, 1); err != nil {
		t.Fatal(err)
	}
	stranger := func(to Endpoint) {
		ah, err := pd.CreateAH(&verbs.AHAttr{DGID: to.GID, HopLimit: 64, IsGlobal: true, PortNum: 1})
		if err != nil {
			t.Error(err)
			return
		}
		wr := verbs.SendWR{
			Opcode: verbs.WRSend, Flags: verbs.SendSignaled | verbs.SendInline, Inline: []byte("abc"),
			AH: ah.Handle(), RemoteQPN: to.QPN, RemoteQKey: qkey,
		}
		if _, err := qp.PostSend(wr); err != nil {
			t.Error(err)
			return
		}
		var wcs [1]verbs.WC
		for n := 0; n == 0; {
			if n, err = cq.Poll(wcs[:]); err != nil {
				t.Error(err)
				return
			}
		}
		if wcs[0].Status != verbs.WCSuccess {
			t.Errorf("the stranger's send: %v", wcs[0].Status)
		}
	}
	l := listen(t)
	served := begin(t.Context(), devs[0], Config{Service: UD, Listener: l, Iters: 20, Check: true})
	_, err = Run(t.Context(), devs[1], Config{
		Service: UD, Host: "127.0.0.1", Port: port(l), Iters: 20, Check: true, Remote: stranger,
	})
	if s := <-served; err != nil || s.err != nil {
		t.Errorf("client: %v, server: %v", err, s.err)
	}
}

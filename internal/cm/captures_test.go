package cm_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"os"
	"testing"

	"github.com/google/gopacket/pcapgo"

	"github.com/softroce/softroce/internal/cm"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/qpstate"
)

// captured is a MAD that kernel rxe's connection manager sent.
type captured struct {
	from, to netip.Addr
	mad      []byte
}

// readCapture returns the MADs of a capture.
func readCapture(tb testing.TB, name string) (mads []captured) {
	tb.Helper()
	file, err := os.ReadFile("../../pkg/bth/testdata/captures/" + name + ".pcap")
	if err != nil {
		tb.Fatal(err)
	}
	r, err := pcapgo.NewReader(bytes.NewReader(file))
	if err != nil {
		tb.Fatal(err)
	}
	for {
		frame, _, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return mads
		}
		if err != nil {
			tb.Fatal(err)
		}
		ip := frame[14:]
		var p bth.Packet
		if err := p.Parse(ip[28:binary.BigEndian.Uint16(ip[2:])]); err != nil {
			tb.Fatal(err)
		}
		if p.BTH().DestQP() != bth.GSIQPN {
			continue
		}
		mads = append(mads, captured{netip.AddrFrom4([4]byte(ip[12:16])), netip.AddrFrom4([4]byte(ip[16:20])), bytes.Clone(p.Payload)})
	}
}

// captures holds how many MADs each capture has.
var captures = map[string]int{"cm_rping": 5, "cm_reject": 2, "cm_udaddy": 2, "cm_rdma_client": 6, "cm_ucmatose": 10}

// TestCaptures: each MAD of kernel rxe parses, and re-serialises to the same bytes.
func TestCaptures(t *testing.T) {
	for name, want := range captures {
		mads := readCapture(t, name)
		if len(mads) != want {
			t.Errorf("%s: %d MADs, want %d", name, len(mads), want)
		}
		for i, c := range mads {
			h, msg, err := cm.ParseMAD(c.mad)
			if err != nil {
				t.Fatalf("%s %d: %v", name, i, err)
			}
			if got := cm.AppendMAD(nil, h, msg); !bytes.Equal(got, c.mad) {
				t.Errorf("%s %d: %+v\ngot  %x\nwant %x", name, i, msg, got, c.mad)
			}
		}
	}
}

// kernel is a kernel's side of a captured connection, whose ids are put in place
// of those that this side has.
type kernel struct {
	t        *testing.T
	mads     []captured
	ids      map[uint32]uint32 // a captured id of the side that we play, to ours
	peer     netip.Addr        // whose MADs are played
	position int
}

// next is the next MAD of the kernel's side, with our ids.
func (k *kernel) next() []byte {
	k.t.Helper()
	for ; k.position < len(k.mads); k.position++ {
		if c := k.mads[k.position]; c.from == k.peer {
			k.position++
			mad := bytes.Clone(c.mad)
			for _, at := range []int{24, 28} {
				if ours, ok := k.ids[binary.BigEndian.Uint32(mad[at:])]; ok {
					binary.BigEndian.PutUint32(mad[at:], ours)
				}
			}
			return mad
		}
	}
	k.t.Fatal("the capture has no more")
	return nil
}

// want compares what this side sent with what the kernel did in its place: all
// but TID, ids, first PSN and GUID, which are each side's own.
func want(t *testing.T, mad, like []byte, own ...[2]int) {
	t.Helper()
	got, wanted := bytes.Clone(mad), bytes.Clone(like)
	for _, o := range append(own, [2]int{8, 16}, [2]int{24, 28}) {
		clear(got[o[0]:o[1]])
		clear(wanted[o[0]:o[1]])
	}
	if !bytes.Equal(got, wanted) {
		t.Errorf("%v:\ngot  %x\nwant %x", cm.AttrID(binary.BigEndian.Uint16(mad[16:])), got, wanted)
	}
}

// Offsets in MADs of what is each side's own.
var (
	reqPSN = [2]int{24 + 44, 24 + 47}
	repPSN = [2]int{24 + 20, 24 + 23}
)

// TestAsKernelServer is rping's server to the captured client: what it sends is
// what the kernel sent in its place.
func TestAsKernelServer(t *testing.T) {
	mads := readCapture(t, "cm_rping") // REQ, REP, RTU, DREQ, DREP
	e := newEnd(t, addrB, guidB, cm.Limits{})
	e.listen()
	k := &kernel{t: t, mads: mads, peer: addrA, ids: map[uint32]uint32{}}
	from := path(addrB, addrA)
	e.HandleMAD(start, from, k.next())
	ev := e.expect(cm.ConnectRequest)
	if ev.Param.QPN != 0x11e || ev.Remote.Port() != 0x8a4d || ev.Param.RetryCount != 7 || ev.Param.RNRRetry != 7 {
		t.Errorf("%+v", ev)
	}
	k.ids[0xa7bb29aa] = uint32(ev.ID)
	param := cm.Param{QPN: 0xa8, ResponderResources: 1, InitiatorDepth: 1, RNRRetry: 7}
	wantAttr2(t, e, ev.ID, param, 0x44c8d8, 19)
	ok(t, e.Accept(start, ev.ID, param, nil))
	want(t, e.sent(), mads[1].mad, repPSN)
	e.HandleMAD(start, from, k.next())
	e.expect(cm.Established)
	e.HandleMAD(start, from, k.next())
	e.expect(cm.Disconnected)
	ok(t, e.Disconnect(start, ev.ID, nil))
	want(t, e.sent(), mads[4].mad)
}

// wantAttr2 checks what comes from a captured REQ.
func wantAttr2(t *testing.T, e *end, id cm.CommID, p cm.Param, sqPSN bth.PSN, timeout uint8) {
	t.Helper()
	a, _, err := e.QPAttr(id, qpstate.RTS, p)
	ok(t, err)
	if a.SQPSN != sqPSN || a.Timeout != timeout || a.RNRRetry != 7 || a.MaxRDAtomic != 1 {
		t.Errorf("%+v", a)
	}
	a, _, err = e.QPAttr(id, qpstate.RTR, p)
	ok(t, err)
	if a.DestQPN != 0x11e || a.PathMTU != bth.MTU1024 || a.AH.FlowLabel != 0xdb59 || a.AH.HopLimit != 64 || a.AH.DGID.Addr() != addrA {
		t.Errorf("%+v", a)
	}
}

// sent is the only MAD that e sends.
func (e *end) sent() []byte {
	e.t.Helper()
	_, mad, ok := e.PollSend()
	if !ok {
		e.t.Fatal("nothing sent")
	}
	mad = bytes.Clone(mad)
	if _, _, more := e.PollSend(); more {
		e.t.Fatal("more than one MAD sent")
	}
	return mad
}

// kernelArgs are the arguments with which a kernel client made a captured REQ.
func kernelArgs(t *testing.T, c captured) cm.ConnectArgs {
	t.Helper()
	_, msg, err := cm.ParseMAD(c.mad)
	ok(t, err)
	r, _ := msg.(*cm.REQ)
	cma, err := cm.ReadCMA(r.Private[:])
	ok(t, err)
	p := path(addrA, addrB)
	p.FlowLabel = r.Primary.FlowLabel
	return cm.ConnectArgs{
		Type: qpstate.RC, Service: r.ServiceID, CMA: cma, Path: p, MTU: bth.MTU1024, LifeTime: 18,
		Param: cm.Param{
			QPN: r.QPN, ResponderResources: r.ResponderResources, InitiatorDepth: r.InitiatorDepth,
			RetryCount: r.RetryCount, RNRRetry: r.RNRRetry,
		},
		Private: r.Private[cm.CMALen:],
	}
}

// TestAsKernelClient is each captured client to its captured server.
func TestAsKernelClient(t *testing.T) {
	for _, name := range []string{"cm_rping", "cm_rdma_client"} {
		t.Run(name, func(t *testing.T) {
			mads := readCapture(t, name)
			e := newEnd(t, addrA, guidA, cm.Limits{})
			from := path(addrA, addrB)
			id, err := e.Connect(start, kernelArgs(t, mads[0]))
			ok(t, err)
			want(t, e.sent(), mads[0].mad, reqPSN)
			k := &kernel{t: t, mads: mads, peer: addrB, ids: map[uint32]uint32{binary.BigEndian.Uint32(mads[0].mad[24:]): uint32(id)}}
			e.HandleMAD(start, from, k.next())
			e.expect(cm.ConnectResponse)
			ok(t, e.Establish(start, id, nil))
			want(t, e.sent(), mads[2].mad)
			ok(t, e.Disconnect(start, id, nil))
			dreq := 3
			if name == "cm_rdma_client" {
				dreq = 4 // the other end asked as well
			}
			want(t, e.sent(), mads[dreq].mad)
			e.HandleMAD(start, from, k.next())
			e.expect(cm.Disconnected)
			e.state(id, cm.TimeWait)
		})
	}
}

// TestAsKernelRefusing: nobody listens, on either side.
func TestAsKernelRefusing(t *testing.T) {
	mads := readCapture(t, "cm_reject")
	server := newEnd(t, addrB, guidB, cm.Limits{})
	server.HandleMAD(start, path(addrB, addrA), mads[0].mad)
	if got := server.sent(); !bytes.Equal(got, mads[1].mad) {
		t.Errorf("got  %x\nwant %x", got, mads[1].mad)
	}
	client := newEnd(t, addrA, guidA, cm.Limits{})
	id, err := client.Connect(start, kernelArgs(t, mads[0]))
	ok(t, err)
	want(t, client.sent(), mads[0].mad, reqPSN)
	k := &kernel{t: t, mads: mads, peer: addrB, ids: map[uint32]uint32{binary.BigEndian.Uint32(mads[0].mad[24:]): uint32(id)}}
	client.HandleMAD(start, path(addrA, addrB), k.next())
	if ev := client.expect(cm.Rejected); ev.Status != 8 {
		t.Errorf("%+v", ev)
	}
}

// TestAsKernelUDAddy is udaddy in both roles.
func TestAsKernelUDAddy(t *testing.T) {
	mads := readCapture(t, "cm_udaddy")
	server := newEnd(t, addrB, guidB, cm.Limits{})
	_, err := server.Listen(cm.ListenArgs{Type: qpstate.UD, Service: cm.IPService(cm.SpaceUDP, port)})
	ok(t, err)
	server.HandleMAD(start, path(addrB, addrA), mads[0].mad)
	ev := server.expect(cm.ConnectRequest)
	if ev.Type != qpstate.UD || ev.PrivateLen != 180 || ev.Remote.String() != "10.77.0.11:46342" {
		t.Errorf("%+v", ev)
	}
	ok(t, server.Accept(start, ev.ID, cm.Param{QPN: 0xac, QKey: 0x01234567}, nil))
	if got := server.sent(); !bytes.Equal(got, mads[1].mad) {
		t.Errorf("got  %x\nwant %x", got, mads[1].mad)
	}
	client := newEnd(t, addrA, guidA, cm.Limits{})
	id, err := client.Connect(start, cm.ConnectArgs{
		Type: qpstate.UD, Service: cm.IPService(cm.SpaceUDP, port), CMA: cm.CMA{Src: ev.Remote, Dst: addrB}, Path: path(addrA, addrB),
	})
	ok(t, err)
	want(t, client.sent(), mads[0].mad)
	k := &kernel{t: t, mads: mads, peer: addrB, ids: map[uint32]uint32{binary.BigEndian.Uint32(mads[0].mad[24:]): uint32(id)}}
	client.HandleMAD(start, path(addrA, addrB), k.next())
	if ev := client.expect(cm.Established); ev.Param.QPN != 0xac || ev.Param.QKey != 0x01234567 || ev.Path.Remote.Addr() != addrB {
		t.Errorf("%+v", ev)
	}
}

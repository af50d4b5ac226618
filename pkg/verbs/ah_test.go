package verbs

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/internal/uapi"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/cq"
)

func gid(s string) GID { return bth.GIDFromAddr(netip.MustParseAddr(s)) }

// area4 is the header area of a datagram over IPv4, with a right checksum.
func area4(from, to string, ttl, tos byte) []byte {
	b := make([]byte, GRHSize)
	h := b[20:]
	h[0], h[1], h[8], h[9] = 0x45, tos, ttl, 17
	binary.BigEndian.PutUint16(h[2:], 100)
	a, z := netip.MustParseAddr(from).As4(), netip.MustParseAddr(to).As4()
	copy(h[12:], a[:])
	copy(h[16:], z[:])
	binary.BigEndian.PutUint16(h[10:], checksum(h))
	return b
}

// area6 is that over IPv6.
func area6(from, to string, hop, class byte, flow uint32) []byte {
	b := make([]byte, GRHSize)
	binary.BigEndian.PutUint32(b, 6<<28|uint32(class)<<20|flow)
	b[7] = hop
	a, z := netip.MustParseAddr(from).As16(), netip.MustParseAddr(to).As16()
	copy(b[8:], a[:])
	copy(b[24:], z[:])
	return b
}

// The answer's address vector, as the header area's version says it.
func TestInitAHFromWC(t *testing.T) {
	f, d := newFake(t)
	f.answer(uapi.OpQueryGIDTable, says(&uapi.QueryGIDTableReply{Entries: []GIDEntry{
		{GID: gid("192.0.2.1"), Index: 0}, {GID: gid("2001:db8::1"), Index: 1}, {GID: gid("192.0.2.2"), Index: 3},
	}}, 0))
	// An IPv4 header behind bytes that look like IPv6: the checksum decides.
	both := area4("192.0.2.9", "192.0.2.2", 9, 1)
	both[0] = 0x60
	// An IPv6 header whose 21st byte looks like IPv4's first.
	six := area6("2001:db8::4500:0:0:9", "2001:db8::1", 3, 0, 0)
	six[20] = 0x45
	wrong := area4("192.0.2.9", "192.0.2.2", 9, 1)
	wrong[31] ^= 1 // without an IPv6 version in front, the checksum is not looked at
	options := area4("192.0.2.9", "192.0.2.2", 9, 1)
	options[0], options[20] = 0x60, 0x46
	for _, c := range []struct {
		name string
		area []byte
		want AHAttr
		err  unix.Errno
	}{
		{"IPv4", area4("192.0.2.9", "192.0.2.2", 63, 0xB8), AHAttr{DGID: gid("192.0.2.9"), SGIDIndex: 3, HopLimit: 63, TrafficClass: 0xB8}, 0},
		{"IPv6", area6("2001:db8::9", "2001:db8::1", 62, 0xB9, 0x12345), AHAttr{DGID: gid("2001:db8::9"), SGIDIndex: 1, HopLimit: 62, TrafficClass: 0xB9, FlowLabel: 0x12345}, 0},
		{"IPv4 by its checksum", both, AHAttr{DGID: gid("192.0.2.9"), SGIDIndex: 3, HopLimit: 9, TrafficClass: 1}, 0},
		{"IPv6 that looks like IPv4", six, AHAttr{DGID: GID(six[8:24]), SGIDIndex: 1, HopLimit: 3}, 0},
		{"IPv4 with a wrong checksum", wrong, AHAttr{DGID: gid("192.0.2.9"), SGIDIndex: 3, HopLimit: 9, TrafficClass: 1}, 0},
		{"IPv4 options behind an IPv6 version", options, AHAttr{}, unix.EINVAL},
		{"to an IPv4 group", area4("192.0.2.9", "239.1.2.3", 1, 0), AHAttr{DGID: gid("192.0.2.9"), SGIDIndex: 0, HopLimit: 1}, 0},
		{"to an IPv6 group", area6("2001:db8::9", "ff0e::1", 1, 0, 0), AHAttr{DGID: gid("2001:db8::9"), SGIDIndex: 1, HopLimit: 1}, 0},
		{"to another's address", area4("192.0.2.9", "192.0.2.77", 1, 0), AHAttr{}, unix.EINVAL},
		{"neither", make([]byte, GRHSize), AHAttr{}, unix.EINVAL},
		{"too short", area4("192.0.2.9", "192.0.2.2", 1, 0)[:39], AHAttr{}, unix.EINVAL},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.err == 0 {
				c.want.IsGlobal, c.want.PortNum = true, 1
			}
			got, err := d.InitAHFromWC(1, &WC{Flags: cq.GRH}, c.area)
			want(t, "error", err, c.err)
			if got != c.want {
				t.Errorf("got %+v\nwant %+v\nof %x", got, c.want, c.area)
			}
		})
	}
	_, err := d.InitAHFromWC(1, &WC{}, area4("192.0.2.9", "192.0.2.2", 1, 0))
	want(t, "a completion without GRH", err, unix.EINVAL)
}

// No bytes make the parser panic.
func FuzzParseGRH(f *testing.F) {
	f.Add(area4("192.0.2.9", "192.0.2.2", 63, 0xB8))
	f.Add(area6("2001:db8::9", "2001:db8::1", 62, 0xB9, 0x12345))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < GRHSize {
			return
		}
		attr, to, ok := parseGRH(b)
		if ok && (!to.IsValid() || attr.FlowLabel > 0xFFFFF) {
			t.Errorf("%x: %+v, %v", b, attr, to)
		}
	})
}

// An address handle asks for what it was given and ends once; requests need one.
func TestAddressHandle(t *testing.T) {
	f, d := newFake(t)
	o := newObjects(t, d, UD, StateRTS)
	attr := AHAttr{DGID: gid("192.0.2.9"), IsGlobal: true, PortNum: 1, SGIDIndex: 2}
	var m uapi.CreateAHRequest
	f.answer(uapi.OpCreateAH, decodes(t, &m, &uapi.HandleReply{Handle: 71}))
	ah, err := o.pd.CreateAH(&attr)
	check(t, err)
	if m.PD != o.pd.handle || m.Attr != attr || ah.Handle() != 71 {
		t.Errorf("asked for %+v, handle %d", m, ah.Handle())
	}
	send := func() error {
		_, err := o.qp.PostSend(SendWR{Opcode: WRSend, AH: ah.Handle(), RemoteQPN: 5, RemoteQKey: 0x80000001})
		return err
	}
	check(t, send())
	if got := f.sent(o.qp); len(got) != 1 || got[0].AH != 71 || got[0].RemoteQPN != 5 || got[0].RemoteQKey != 0x80000001 {
		t.Errorf("posted %+v", got)
	}
	var h uapi.HandleRequest
	f.answer(uapi.OpDestroyAH, decodes(t, &h, nil))
	check(t, ah.Destroy())
	if h.Handle != 71 {
		t.Errorf("destroyed handle %d", h.Handle)
	}
	want(t, "a destroyed handle", send(), unix.EINVAL)
	want(t, "a second destruction", ah.Destroy(), unix.EINVAL)
}

// Attachment names the queue pair and the group; only UD has it.
func TestMulticast(t *testing.T) {
	f, d := newFake(t)
	ud, rc := newObjects(t, d, UD, StateRTS), newObjects(t, d, RC, StateRTS)
	group := gid("239.1.2.3")
	for op, call := range map[uapi.Op]func(*QP) error{
		uapi.OpAttachMcast: func(q *QP) error { return q.AttachMcast(group, 7) },
		uapi.OpDetachMcast: func(q *QP) error { return q.DetachMcast(group, 7) },
	} {
		var m uapi.McastRequest
		f.answer(op, decodes(t, &m, nil))
		check(t, call(ud.qp))
		if m != (uapi.McastRequest{QP: ud.qp.handle, GID: group, LID: 7}) {
			t.Errorf("%v asked for %+v", op, m)
		}
		want(t, "RC", call(rc.qp), unix.EINVAL)
		f.answer(op, says(nil, unix.ENOMEM))
		want(t, "a limit", call(ud.qp), unix.ENOMEM)
	}
}

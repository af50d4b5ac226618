package cm_test

import (
	"encoding/hex"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/softroce/softroce/internal/cm"
	"github.com/softroce/softroce/pkg/bth"
)

// fill is private data that is different in each byte.
func fill[T any](v *T, from byte) T {
	rv := reflect.ValueOf(v).Elem()
	for i := range rv.Len() {
		rv.Index(i).SetUint(uint64(from + byte(i)))
	}
	return *v
}

func filled[T any](from byte) T { return fill(new(T), from) }

var (
	gid1 = bth.GID{0: 0xFD, 1: 0x11, 15: 1}
	gid2 = bth.GID{0: 0xFD, 1: 0x22, 15: 2}
	gid3 = bth.GID{0: 0xFD, 1: 0x33, 15: 3}
	gid4 = bth.GID{0: 0xFD, 1: 0x44, 15: 4}
)

// goldens are messages with a value of its own in every field, and the bytes
// before the private data, written from the layouts of IBTA Vol 1 §12.6 to §12.11.
var goldens = []struct {
	name string
	msg  cm.Message
	want string
}{
	{
		"§12.6.5 REQ",
		&cm.REQ{
			LocalID: 0x01020304, VendorID: 0x050607, ServiceID: 0x08090A0B0C0D0E0F, CAGUID: 0x1011121314151617,
			QKey: 0x18191A1B, QPN: 0x1C1D1E, ResponderResources: 0x1F, LocalEECN: 0x202122, InitiatorDepth: 0x23,
			RemoteEECN: 0x242526, RemoteTimeout: 21, Service: cm.ServiceUC, FlowControl: true, PSN: 0x272829,
			LocalTimeout: 10, RetryCount: 5, PKey: 0x2A2B, MTU: 4, RDC: true, RNRRetry: 6, MaxCMRetries: 13, SRQ: true, Extended: 1,
			Primary: cm.PathRecord{
				LocalLID: 0x2C2D, RemoteLID: 0x2E2F, LocalGID: gid1, RemoteGID: gid2, FlowLabel: 0x30313, Rate: 0x21,
				TrafficClass: 0x34, HopLimit: 0x35, SL: 9, SubnetLocal: true, AckTimeout: 19,
			},
			Alternate: cm.PathRecord{
				LocalLID: 0x363, RemoteLID: 0x364, LocalGID: gid3, RemoteGID: gid4, FlowLabel: 0xFFFFF, Rate: 0x3F,
				TrafficClass: 0x37, HopLimit: 0x38, SL: 15, AckTimeout: 31,
			},
			AltSAP: true, Private: filled[[cm.PrivateREQ]byte](1),
		},
		"01020304 00 050607 08090a0b0c0d0e0f 1011121314151617 00000000 18191a1b 1c1d1e 1f 202122 23 242526" +
			"ab 272829 55 2a2b 4e d9 2c2d 2e2f" +
			"fd110000000000000000000000000001 fd220000000000000000000000000002 30313021 34 35 98 98" +
			"0363 0364 fd330000000000000000000000000003 fd440000000000000000000000000004 fffff03f 37 38 f0 fc",
	},
	{
		"§12.6.6 MRA",
		&cm.MRA{LocalID: 1, RemoteID: 2, Subject: cm.SubjectOther, ServiceTimeout: 24, Private: filled[[cm.PrivateMRA]byte](1)},
		"00000001 00000002 80 c0",
	},
	{
		"§12.6.7 REJ",
		&cm.REJ{
			LocalID: 1, RemoteID: 2, Subject: cm.SubjectREP, InfoLen: 72, Reason: cm.RejVendorOption,
			Info: filled[[cm.MaxInfo]byte](0x80), Private: filled[[cm.PrivateREJ]byte](1),
		},
		"00000001 00000002 40 90 0023" + sequence(0x80, cm.MaxInfo),
	},
	{
		"§12.6.8 REP",
		&cm.REP{
			LocalID: 0x01020304, RemoteID: 0x05060708, QKey: 0x090A0B0C, QPN: 0x0D0E0F, EECN: 0x101112, PSN: 0x131415,
			VendorID: 0xAABBCC, ResponderResources: 0x16, InitiatorDepth: 0x17, AckDelay: 15, Failover: 2, FlowControl: true,
			RNRRetry: 7, SRQ: true, CAGUID: 0x18191A1B1C1D1E1F, Private: filled[[cm.PrivateREP]byte](1),
		},
		"01020304 05060708 090a0b0c 0d0e0f aa 101112 bb 131415 cc 16 17 7d f0 18191a1b1c1d1e1f",
	},
	{"§12.6.9 RTU", &cm.RTU{LocalID: 1, RemoteID: 2, Private: filled[[cm.PrivateRTU]byte](1)}, "00000001 00000002"},
	{
		"§12.6.10 DREQ", &cm.DREQ{LocalID: 1, RemoteID: 2, RemoteQPN: 0x030405, Private: filled[[cm.PrivateDREQ]byte](1)},
		"00000001 00000002 030405 00",
	},
	{"§12.6.11 DREP", &cm.DREP{LocalID: 1, RemoteID: 2, Private: filled[[cm.PrivateDREP]byte](1)}, "00000001 00000002"},
	{
		"§12.11.1 SIDR_REQ",
		&cm.SIDRREQ{RequestID: 0x01020304, PKey: 0x0506, ServiceID: 0x0708090A0B0C0D0E, Private: filled[[cm.PrivateSIDRREQ]byte](1)},
		"01020304 0506 0000 0708090a0b0c0d0e",
	},
	{
		"§12.11.2 SIDR_REP",
		&cm.SIDRREP{
			RequestID: 0x01020304, Status: cm.SIDRVersion, InfoLen: 6, VendorID: 0xAABBCC, QPN: 0x070809, ServiceID: 0x0A0B0C0D0E0F1011,
			QKey: 0x12131415, Info: filled[[cm.MaxInfo]byte](0x80), Private: filled[[cm.PrivateSIDRREP]byte](1),
		},
		"01020304 05 06 aabb 070809 cc 0a0b0c0d0e0f1011 12131415" + sequence(0x80, cm.MaxInfo),
	},
	{
		"§12.8.1 LAP",
		&cm.LAP{
			LocalID: 1, RemoteID: 2, RemoteQPN: 0x030405, RemoteTimeout: 20, Path: cm.PathRecord{
				LocalLID: 0x0607, RemoteLID: 0x0809, LocalGID: gid1, RemoteGID: gid2, FlowLabel: 0xABCDE, Rate: 0x3F,
				TrafficClass: 0x0A, HopLimit: 0x0B, SL: 5, SubnetLocal: true, AckTimeout: 17,
			},
			Private: filled[[cm.PrivateLAP]byte](1),
		},
		"00000001 00000002 00000000 030405 a0 00000000 0607 0809" +
			"fd110000000000000000000000000001 fd220000000000000000000000000002 abcde0 0a 0b 3f 58 88",
	},
	{
		"§12.8.2 APR",
		&cm.APR{
			LocalID: 1, RemoteID: 2, InfoLen: 3, Status: cm.APIsCurrent, Info: filled[[cm.MaxInfo]byte](0x80),
			Private: filled[[cm.PrivateAPR]byte](1),
		},
		"00000001 00000002 03 05 0000" + sequence(0x80, cm.MaxInfo),
	},
	{
		"§13.4.8.1 ClassPortInfo", &cm.ClassPortInfo{BaseVersion: 1, ClassVersion: 2, Capability: 0x3200, ResponseTime: 20},
		"01 02 3200 00000014" + strings.Repeat("00", 224),
	},
}

// sequence is n bytes that count from a value, in hexadecimal.
func sequence(from byte, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = from + byte(i)
	}
	return hex.EncodeToString(b)
}

// TestMessages: each message is these bytes, and these bytes are the message.
func TestMessages(t *testing.T) {
	for _, tt := range goldens {
		t.Run(tt.name, func(t *testing.T) {
			head := strings.ReplaceAll(tt.want, " ", "")
			want := head + sequence(1, cm.DataLen-len(head)/2)
			var d cm.Data
			for i := range d {
				d[i] = 0xEE // Put must write all
			}
			tt.msg.Put(&d)
			if got := hex.EncodeToString(d[:]); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
			h := cm.Header{BaseVersion: 1, Class: 7, ClassVersion: 2, Method: 3, Status: 4, ClassSpecific: 5, TID: 6, Reserved: 7, Modifier: 8}
			if tt.msg.Attr() == cm.AttrClassPortInfo {
				h.Method = cm.MethodGetResp
			}
			mad := cm.AppendMAD(nil, h, tt.msg)
			h.Attr = tt.msg.Attr()
			gotH, got, err := cm.ParseMAD(mad)
			if err != nil || gotH != h || !reflect.DeepEqual(got, tt.msg) {
				t.Errorf("parsed %+v %+v, error %v", gotH, got, err)
			}
		})
	}
}

// TestHeader: the header's bytes (§13.4.2).
func TestHeader(t *testing.T) {
	h := cm.Header{
		BaseVersion: 1, Class: 2, ClassVersion: 3, Method: 4, Status: 0x0506, ClassSpecific: 0x0708, TID: 0x090A0B0C0D0E0F10,
		Attr: 0x1112, Reserved: 0x1314, Modifier: 0x15161718,
	}
	if got := hex.EncodeToString(h.Append(nil)); got != sequence(1, cm.HeaderLen) {
		t.Errorf("%s", got)
	}
}

// TestMalformed: what is no MAD of ours is not parsed, and changes nothing.
func TestMalformed(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(mad []byte) []byte
		want   string
	}{
		{"empty", func([]byte) []byte { return nil }, "0 bytes"},
		{"short", func(b []byte) []byte { return b[:255] }, "255 bytes"},
		{"long", func(b []byte) []byte { return append(b, 0) }, "257 bytes"},
		{"base version", func(b []byte) []byte { b[0] = 2; return b }, "base version 2"},
		{"class", func(b []byte) []byte { b[1] = 3; return b }, "class 0x03"},
		{"class version", func(b []byte) []byte { b[2] = 1; return b }, "class version 1"},
		{"method", func(b []byte) []byte { b[3] = 1; return b }, "method 0x01"},
		{"attribute", func(b []byte) []byte { b[17] = 0x1B; return b }, "attribute 0x1b"},
		{"attribute 0", func(b []byte) []byte { b[17] = 0; return b }, "attribute 0x0"},
		{"ClassPortInfo by Send", func(b []byte) []byte { b[17] = 1; b[3] = 2; return b }, "method 0x02 of ClassPortInfo"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPair(t)
			p.b.listen()
			must[cm.CommID](t)(p.a.Connect(p.now, connectArgs()))
			mad := tt.change(p.a.sent())
			if _, _, err := cm.ParseMAD(mad); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
			if v := p.b.HandleMAD(p.now, path(addrB, addrA), mad); v != cm.DropMalformed {
				t.Errorf("verdict %v", v)
			}
			p.b.quiet()
			if _, _, ok := p.b.PollSend(); ok || p.b.Counters().Verdicts[cm.DropMalformed] != 1 {
				t.Error("answered, or not counted")
			}
		})
	}
}

// TestCMA: the header of both families (Annex A11.5).
func TestCMA(t *testing.T) {
	for _, tt := range []struct {
		src, dst, want string
	}{
		{"10.0.0.1:258", "10.0.0.2", "0040 0102" + strings.Repeat("00", 12) + "0a000001" + strings.Repeat("00", 12) + "0a000002"},
		{"[fd77::11]:258", "fd77::12", "0060 0102 fd770000000000000000000000000011 fd770000000000000000000000000012"},
	} {
		c := cm.CMA{Src: netip.MustParseAddrPort(tt.src), Dst: netip.MustParseAddr(tt.dst)}
		b := filled[[cm.CMALen]byte](1)
		c.Put(b[:])
		if got := hex.EncodeToString(b[:]); got != strings.ReplaceAll(tt.want, " ", "") {
			t.Errorf("%s\n%s", got, tt.want)
		}
		if got, err := cm.ReadCMA(b[:]); err != nil || got != c {
			t.Errorf("%+v, %v, want %+v", got, err, c)
		}
	}
}

// TestServiceID: port spaces and ports.
func TestServiceID(t *testing.T) {
	s := cm.IPService(cm.SpaceTCP, 0x1C06)
	if s != 0x1061C06 || s.Port() != 0x1C06 || s.Space() != cm.SpaceTCP || s.String() != "0x0000000001061c06" {
		t.Errorf("%v %v %v", s, s.Port(), s.Space())
	}
	if cm.SpaceUDP.String() != "udp" || cm.PortSpace(7).String() != "port space 0x7" {
		t.Error("names")
	}
}

// TestWords: every value that people meet has a word.
func TestWords(t *testing.T) {
	for _, tt := range []struct{ got, want string }{
		{cm.RejInvalidServiceID.String(), "invalid service id: nobody listens there"},
		{cm.RejectReason(34).String(), "reject reason 34"},
		{cm.RejectReason(0).String(), "reject reason 0"},
		{cm.RejectReason(65535).String(), "reject reason 65535"},
		{cm.SIDRNoQP.String(), "no queue pair"},
		{cm.SIDRStatus(9).String(), "SIDR status 9"},
		{cm.APUnsupported.String(), "alternate paths are not supported"},
		{cm.AttrSIDRREP.String(), "SIDR_REP"},
		{cm.AttrID(0x1B).String(), "attribute 0x1b"},
		{cm.ConnectRequest.String(), "CONNECT_REQUEST"},
		{cm.TimewaitExit.String(), "TIMEWAIT_EXIT"},
		{cm.EventKind(3).String(), "event 3"},
		{cm.Connected.String(), "ESTABLISHED"},
		{cm.State(99).String(), "state 99"},
		{cm.DropFull.String(), "drop_full"},
		{cm.Verdict(99).String(), "verdict_99"},
	} {
		if tt.got != tt.want {
			t.Errorf("%q, want %q", tt.got, tt.want)
		}
	}
}

// TestAckTimeoutCode: as kernels compute it, from the sheet's rule and a capture.
func TestAckTimeoutCode(t *testing.T) {
	for _, tt := range []struct{ delay, life, want uint8 }{
		{15, 18, 19}, {15, 16, 17}, {0, 18, 19}, {17, 16, 18}, {16, 16, 18}, {18, 16, 19}, {20, 16, 20}, {31, 30, 31}, {31, 16, 31}, {0, 30, 31},
	} {
		if got := cm.AckTimeoutCode(tt.delay, tt.life); got != tt.want {
			t.Errorf("delay %d, life time %d: %d, want %d", tt.delay, tt.life, got, tt.want)
		}
	}
}

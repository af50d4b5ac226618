package uapi

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

// message is what every body of a control message is.
type message interface {
	Body
	Decode(b []byte) error
}

// messages makes one of each kind.
var messages = []func() message{
	func() message { return &HelloRequest{} },
	func() message { return &HelloReply{} },
	func() message { return &QueryDeviceReply{} },
	func() message { return &QueryPortRequest{} },
	func() message { return &QueryPortReply{} },
	func() message { return &QueryGIDTableReply{} },
	func() message { return &HandleRequest{} },
	func() message { return &HandleReply{} },
	func() message { return &RegMRRequest{} },
	func() message { return &RegMRReply{} },
	func() message { return &CreateCQRequest{} },
	func() message { return &CreateCQReply{} },
	func() message { return &DestroyReply{} },
	func() message { return &CreateQPRequest{} },
	func() message { return &CreateQPReply{} },
	func() message { return &ModifyQPRequest{} },
	func() message { return &ModifyQPReply{} },
	func() message { return &QueryQPReply{} },
	func() message { return &QueryDeviceRequest{} },
	func() message { return &QueryGIDTableRequest{} },
	func() message { return &AllocPDRequest{} },
	func() message { return &CreateChannelRequest{} },
	func() message { return &CreateAHRequest{} },
	func() message { return &McastRequest{} },
	func() message { return &CreateSRQRequest{} },
	func() message { return &CreateSRQReply{} },
	func() message { return &ModifySRQRequest{} },
	func() message { return &ModifySRQReply{} },
	func() message { return &QuerySRQReply{} },
	func() message { return &ReregMRRequest{} },
	func() message { return &AllocMRRequest{} },
	func() message { return &AllocMWRequest{} },
	func() message { return &AllocMWReply{} },
	func() message { return &AdviseMRRequest{} },
	func() message { return &ResizeCQRequest{} },
	func() message { return &ListResourcesRequest{} },
	func() message { return &ImpairRequest{} },
	func() message { return &ImpairReply{} },
	func() message { return &ListImpairRequest{} },
	func() message { return &ListImpairReply{} },
	func() message { return &StartCaptureRequest{} },
	func() message { return &CaptureReply{} },
	func() message { return &ListResourcesReply{} },
	func() message { return &ListCountersRequest{} },
	func() message { return &ListCountersReply{} },
	func() message { return &ExplainQPRequest{} },
	func() message { return &ExplainQPReply{} },
	func() message { return &ListGIDsRequest{} },
	func() message { return &ListGIDsReply{} },
	func() message { return &CreateCMChannelRequest{} },
	func() message { return &CreateCMIDRequest{} },
	func() message { return &CMAddrRequest{} },
	func() message { return &CMAddrReply{} },
	func() message { return &CMValueRequest{} },
	func() message { return &CMCallRequest{} },
	func() message { return &QPAttrCMReply{} },
	func() message { return &CMEventsReply{} },
	func() message { return &CMMcastRequest{} },
}

func nameOf(m message) string { return reflect.TypeOf(m).Elem().Name() }

// filled returns a message with a value in every field that its Decode takes.
func filled(m message) message {
	n := uint64(0)
	fill(reflect.ValueOf(m), &n)
	switch m := m.(type) {
	case *HelloRequest:
		m.Version = Version
	case *HelloReply:
		m.Workers = MaxWorkers
	case *RegMRRequest:
		m.Kind = MRForeign
	case *ReregMRRequest:
		m.Flags, m.MR.Kind = reregKnown, MRImplicit
	case *ImpairRequest:
		m.Mode = ImpairRemove
	case *CreateQPReply:
		m.DoorbellIndex = DoorbellIndices - 1
	}
	return m
}

func TestMessages(t *testing.T) {
	for _, newMessage := range messages {
		m := filled(newMessage())
		name := nameOf(m)
		t.Run(name, func(t *testing.T) {
			b := m.Append(nil)
			golden(t, name, b)
			got := newMessage()
			if err := got.Decode(b); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, m) {
				t.Errorf("decoded\n%+v, want\n%+v", got, m)
			}
			if prefix := m.Append([]byte("prefix")); !bytes.Equal(prefix, append([]byte("prefix"), b...)) {
				t.Error("Append does not append")
			}
			for n := range b {
				if err := newMessage().Decode(b[:n]); !errors.Is(err, ErrMalformed) {
					t.Errorf("Decode of the first %d of %d bytes: %v, want ErrMalformed", n, len(b), err)
				}
			}
			if err := newMessage().Decode(append(b, 0)); !errors.Is(err, ErrMalformed) {
				t.Errorf("Decode of one byte too many: %v, want ErrMalformed", err)
			}
		})
	}
}

func TestMessageValues(t *testing.T) {
	change := func(m message, off int, v byte) []byte {
		b := filled(m).Append(nil)
		b[off] = v
		return b
	}
	rows := []struct {
		name string
		m    message
		b    []byte
	}{
		{"no worker", &HelloReply{}, (&HelloReply{Version: 1}).Append(nil)},
		{"more workers than the page has room for", &HelloReply{}, (&HelloReply{Workers: MaxWorkers + 1}).Append(nil)},
		{"region of no kind", &RegMRRequest{}, (&RegMRRequest{}).Append(nil)},
		{"region of an unknown kind", &RegMRRequest{}, (&RegMRRequest{Kind: 4}).Append(nil)},
		{"re-registration with unknown flags", &ReregMRRequest{}, (&ReregMRRequest{Flags: 8}).Append(nil)},
		{"new translation of no kind", &ReregMRRequest{}, (&ReregMRRequest{Flags: ReregTranslation}).Append(nil)},
		{"element count beyond the message", &AdviseMRRequest{}, append(make([]byte, 12), 0xff, 0xff, 0xff, 0xff)},
		{"resources that are no JSON", &ListResourcesReply{}, append(make([]byte, 8), '[')},
		{"flag of 2", &CreateQPRequest{}, change(&CreateQPRequest{}, 17, 2)},
		{"doorbell index outside", &CreateQPReply{}, (&CreateQPReply{DoorbellIndex: DoorbellIndices}).Append(nil)},
		{"text not UTF-8", &HelloRequest{}, []byte{Version, 0, 1, 0, 0xff}},
		{"text longer than the message", &HelloRequest{}, []byte{Version, 0, 2, 0, 'a'}},
		{"text too long", &HelloRequest{}, append([]byte{Version, 0, 1, 4}, make([]byte, 1025)...)},
		{"GID count beyond the message", &QueryGIDTableReply{}, []byte{0xff, 0xff, 0xff, 0xff}},
		{"too many GIDs", &QueryGIDTableReply{}, append([]byte{1, 4, 0, 0}, make([]byte, 1025*gidEntrySize)...)},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			if err := row.m.Decode(row.b); !errors.Is(err, ErrMalformed) {
				t.Errorf("Decode: %v, %+v, want ErrMalformed", err, row.m)
			}
		})
	}
}

// A hello of another version is understood as far as its version, so that it
// can be refused by name.
func TestHelloOfAnotherVersion(t *testing.T) {
	var m HelloRequest
	if err := m.Decode([]byte{Version + 1, 0, 0xde, 0xad}); err != nil || m.Version != Version+1 {
		t.Errorf("Decode: %+v, %v", m, err)
	}
}

func TestHeader(t *testing.T) {
	h := Header{Op: OpModifyQP, Version: 0xa1b2, Seq: 0xc3d4e5f6, Errno: -2}
	msg := AppendMessage(nil, h, &HandleRequest{Handle: 0x01020304})
	golden(t, "Header", msg)
	h.Length = 4
	got, body, err := DecodeHeader(msg)
	if err != nil || got != h || !bytes.Equal(body, msg[HeaderSize:]) {
		t.Errorf("DecodeHeader: %+v, %x, %v; want %+v", got, body, err, h)
	}
	if got, body, err := DecodeHeader(AppendMessage(nil, Header{Op: OpAllocPD}, nil)); err != nil || len(body) != 0 || got.Length != 0 {
		t.Errorf("DecodeHeader without a body: %+v, %x, %v", got, body, err)
	}
	for _, bad := range [][]byte{nil, msg[:HeaderSize-1], msg[:len(msg)-1], append(msg[:len(msg):len(msg)], 0), make([]byte, MaxMessage+1)} {
		if _, _, err := DecodeHeader(bad); !errors.Is(err, ErrMalformed) {
			t.Errorf("DecodeHeader of %d bytes: %v, want ErrMalformed", len(bad), err)
		}
	}
	for o := OpHello; o <= OpDestroyQP; o++ {
		if strings.HasPrefix(o.String(), "op ") {
			t.Errorf("operation %d has no name", uint16(o))
		}
	}
}

func TestErrorReply(t *testing.T) {
	h := Header{Op: OpRegMR, Version: Version, Seq: 9, Errno: 22}
	for _, row := range []struct{ name, text, want string }{
		{"plain", "reg MR: length 0", "reg MR: length 0"},
		{"empty", "", ""},
		{"not UTF-8", "a\xffb", "a?b"},
		{"cut within a rune", strings.Repeat("a", 1023) + "é", strings.Repeat("a", 1023)},
		{"cut", strings.Repeat("é", 1000), strings.Repeat("é", 512)},
	} {
		t.Run(row.name, func(t *testing.T) {
			msg := AppendError(nil, h, row.text)
			got, body, err := DecodeHeader(msg)
			if err != nil || got.Errno != 22 || got.Seq != 9 {
				t.Fatalf("DecodeHeader: %+v, %v", got, err)
			}
			if text := DecodeError(body); text != row.want || !utf8.ValidString(text) {
				t.Errorf("text %q, want %q", text, row.want)
			}
		})
	}
	if got := DecodeError(bytes.Repeat([]byte{0xff}, 5000)); !utf8.ValidString(got) || len(got) > maxText {
		t.Errorf("DecodeError of rubbish: %d bytes, valid %t", len(got), utf8.ValidString(got))
	}
}

func TestTextIsCut(t *testing.T) {
	m := HelloRequest{Version: Version, Program: strings.Repeat("é", 1000)}
	var got HelloRequest
	if err := got.Decode(m.Append(nil)); err != nil || len(got.Program) > maxText || !strings.HasPrefix(m.Program, got.Program) {
		t.Errorf("decoded %d bytes, %v", len(got.Program), err)
	}
}

func TestCMRecord(t *testing.T) {
	var r CMRecord
	n := uint64(0)
	fill(reflect.ValueOf(&r), &n)
	b := r.Append(nil)
	golden(t, "CMRecord", b)
	if got, ok := DecodeCMRecord(b); !ok || !reflect.DeepEqual(got, r) {
		t.Errorf("decoded %t\n%+v, want\n%+v", ok, got, r)
	}
	if _, ok := DecodeCMRecord(b[1:]); ok {
		t.Error("a short record was decoded")
	}
	b[120], b[121] = 0xff, 0xff
	if _, ok := DecodeCMRecord(b); ok {
		t.Error("a record with too much private data was decoded")
	}
}

func TestRecords(t *testing.T) {
	b := AppendChannelRecord(nil, 0xa1b2c3d4)
	golden(t, "ChannelRecord", b)
	if got := DecodeChannelRecord(b); got != 0xa1b2c3d4 {
		t.Errorf("channel record decodes to %#x", got)
	}
	r := AsyncRecord{Event: EventQPLastWQEReached, Kind: ElementQP, Handle: 0xa1b2c3d4}
	b = r.Append(nil)
	golden(t, "AsyncRecord", b)
	if got := DecodeAsyncRecord(b); got != r {
		t.Errorf("async record decodes to %+v, want %+v", got, r)
	}
	for _, n := range []int{0, 7, 9, 15, 17} {
		if got := DecodeChannelRecord(make([]byte, n)); got != 0 {
			t.Errorf("channel record of %d bytes decodes to %#x", n, got)
		}
		if got := DecodeAsyncRecord(make([]byte, n)); got.Event != EventDeviceFatal {
			t.Errorf("async record of %d bytes decodes to %+v", n, got)
		}
	}
}

func FuzzMessages(f *testing.F) {
	for i, newMessage := range messages {
		f.Add(uint8(i), filled(newMessage()).Append(nil))
		f.Add(uint8(i), newMessage().Append(nil))
	}
	f.Fuzz(func(t *testing.T, kind uint8, b []byte) {
		newMessage := messages[int(kind)%len(messages)]
		m := newMessage()
		if err := m.Decode(b); err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("%T: %v is no ErrMalformed", m, err)
			}
			return
		}
		again := newMessage()
		if err := again.Decode(m.Append(nil)); err != nil && nameOf(m) != "HelloRequest" {
			t.Fatalf("%T: appended, it decodes no more: %v", m, err)
		} else if err == nil && !reflect.DeepEqual(m, again) {
			t.Fatalf("decoded %+v, appended and decoded %+v", m, again)
		}
	})
}

func FuzzHeader(f *testing.F) {
	f.Add(AppendMessage(nil, Header{Op: OpHello, Version: Version}, &HelloRequest{Version: Version}))
	f.Add(AppendError(nil, Header{Errno: 1}, "no"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, body, err := DecodeHeader(b)
		if err != nil {
			return
		}
		if got := append(h.append(nil), body...); !bytes.Equal(got, b) {
			t.Fatalf("appended %x, want %x", got, b)
		}
		if !utf8.ValidString(DecodeError(body)) {
			t.Fatal("the explanation is not UTF-8")
		}
		DecodeChannelRecord(body)
		DecodeAsyncRecord(body)
	})
}

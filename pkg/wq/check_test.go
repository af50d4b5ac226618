package wq

import (
	"errors"
	"strings"
	"testing"
)

const (
	rc  = 2
	uc  = 3
	ud  = 4
	gsi = 1
)

// TestOpcodeByType: all 256 opcodes on all QP types against the verbs' table,
// written here as one string of types for each opcode.
func TestOpcodeByType(t *testing.T) {
	allowed := map[Opcode]string{
		RDMAWrite:         "RC UC",
		RDMAWriteWithImm:  "RC UC",
		Send:              "RC UC UD GSI",
		SendWithImm:       "RC UC UD GSI",
		RDMARead:          "RC",
		AtomicCmpAndSwp:   "RC",
		AtomicFetchAndAdd: "RC",
		LocalInv:          "RC UC",
		BindMW:            "RC UC",
		SendWithInv:       "RC",
		RegMR:             "RC",
	}
	names := map[uint8]string{rc: "RC", uc: "UC", ud: "UD", gsi: "GSI"}
	for op := range 256 {
		for typ := range 256 {
			w := SendWR{Opcode: Opcode(op)}
			if w.Opcode == AtomicCmpAndSwp || w.Opcode == AtomicFetchAndAdd {
				w.SGList = []SGE{{Length: 8}}
			}
			if w.Opcode == RegMR {
				w.SGList = []SGE{{Length: 4096}}
			}
			name, known := names[uint8(typ)]
			want := false
			for _, n := range strings.Fields(allowed[w.Opcode]) {
				want = want || known && n == name
			}
			err := Check(uint8(typ), &w, Limits{MaxSGE: 1})
			if want != (err == nil) || err != nil && !errors.Is(err, ErrOpcode) {
				t.Errorf("opcode %d on type %d (%s): %v, want allowed %v", op, typ, name, err, want)
			}
		}
	}
}

func TestCheck(t *testing.T) {
	sges := func(lengths ...uint32) []SGE {
		l := make([]SGE, len(lengths))
		for i, n := range lengths {
			l[i].Length = n
		}
		return l
	}
	lim := Limits{MaxSGE: 3, MaxInline: 16}
	for _, tt := range []struct {
		name string
		w    SendWR
		lim  Limits
		want error
	}{
		{"zero-length SEND", SendWR{Opcode: Send}, lim, nil},
		{"zero-length READ", SendWR{Opcode: RDMARead}, lim, nil},
		{"elements at the limit", SendWR{Opcode: Send, SGList: sges(1, 0, 2)}, lim, nil},
		{"elements above the limit", SendWR{Opcode: Send, SGList: sges(1, 1, 1, 1)}, lim, ErrSGECount},
		{"elements on a queue of none", SendWR{Opcode: RDMAWrite, SGList: sges(1)}, Limits{}, ErrSGECount},
		{"2^31 bytes", SendWR{Opcode: RDMAWrite, SGList: sges(1<<31-1, 1)}, lim, nil},
		{"C9-94: 2^31+1 bytes", SendWR{Opcode: RDMAWrite, SGList: sges(1<<31, 1)}, lim, ErrLength},
		{"lengths whose sum wraps 32 bits", SendWR{Opcode: RDMARead, SGList: sges(1<<32-1, 1<<32-1, 3)}, lim, ErrLength},
		{"above the port's limit", SendWR{Opcode: Send, SGList: sges(4097)}, Limits{MaxSGE: 1, MaxMessage: 4096}, ErrLength},
		{"at the port's limit", SendWR{Opcode: Send, SGList: sges(4096)}, Limits{MaxSGE: 1, MaxMessage: 4096}, nil},
		{"all flags", SendWR{Opcode: Send, Flags: SendFence | SendSignaled | SendSolicited}, lim, nil},
		{"IP_CSUM", SendWR{Opcode: Send, Flags: 16}, lim, ErrFlags},
		{"unknown flag", SendWR{Opcode: Send, Flags: 1 << 31}, lim, ErrFlags},
		{"inline at the limit", SendWR{Opcode: Send, Flags: SendInline, Inline: make([]byte, 16)}, lim, nil},
		{"inline above the limit", SendWR{Opcode: Send, Flags: SendInline, Inline: make([]byte, 17)}, lim, ErrInline},
		{"inline of nothing", SendWR{Opcode: RDMAWriteWithImm, Flags: SendInline}, lim, nil},
		{"inline SEND with invalidate", SendWR{Opcode: SendWithInv, Flags: SendInline, Inline: make([]byte, 1)}, lim, nil},
		{"inline and elements", SendWR{Opcode: Send, Flags: SendInline, SGList: sges(1)}, lim, ErrInline},
		{"inline READ", SendWR{Opcode: RDMARead, Flags: SendInline}, lim, ErrInline},
		{"inline atomic", SendWR{Opcode: AtomicFetchAndAdd, Flags: SendInline, Inline: make([]byte, 8)}, lim, ErrInline},
		{"inline LOCAL_INV", SendWR{Opcode: LocalInv, Flags: SendInline}, lim, ErrInline},
		{"inline BIND_MW", SendWR{Opcode: BindMW, Flags: SendInline}, lim, ErrInline},
		{"inline REG_MR", SendWR{Opcode: RegMR, Flags: SendInline, Inline: make([]byte, 1)}, lim, ErrInline},
		{"BIND_MW", SendWR{Opcode: BindMW, Flags: SendFence | SendSignaled}, Limits{}, nil},
		{"BIND_MW with an element", SendWR{Opcode: BindMW, SGList: sges(0)}, lim, ErrSGECount},
		{"LOCAL_INV", SendWR{Opcode: LocalInv, Flags: SendFence}, Limits{}, nil},
		{"LOCAL_INV with an element", SendWR{Opcode: LocalInv, SGList: sges(8)}, lim, ErrSGECount},
		{"REG_MR of pages at the limit", SendWR{Opcode: RegMR, SGList: sges(4096, 4096, 4096)}, lim, nil},
		{"REG_MR of more pages", SendWR{Opcode: RegMR, SGList: sges(4096, 4096, 4096, 4096)}, lim, ErrSGECount},
		{"REG_MR of more than a message", SendWR{Opcode: RegMR, SGList: sges(1<<31, 1<<31)}, lim, nil},
		{"REG_MR of no pages", SendWR{Opcode: RegMR}, lim, ErrPages},
		{"REG_MR of small pages", SendWR{Opcode: RegMR, SGList: sges(2048, 2048)}, lim, ErrPages},
		{"REG_MR of 12288 bytes a page", SendWR{Opcode: RegMR, SGList: sges(12288)}, lim, ErrPages},
		{"REG_MR of different pages", SendWR{Opcode: RegMR, SGList: sges(8192, 4096)}, lim, ErrPages},
		{"inline data without the flag is not meant", SendWR{Opcode: Send, Inline: make([]byte, 99)}, lim, nil},
		{"atomic", SendWR{Opcode: AtomicCmpAndSwp, RemoteAddr: 16, SGList: sges(8)}, lim, nil},
		{"atomic of 4 bytes", SendWR{Opcode: AtomicCmpAndSwp, SGList: sges(4)}, lim, ErrAtomic},
		{"atomic of 16 bytes", SendWR{Opcode: AtomicFetchAndAdd, SGList: sges(16)}, lim, ErrAtomic},
		{"atomic of two elements", SendWR{Opcode: AtomicFetchAndAdd, SGList: sges(4, 4)}, lim, ErrAtomic},
		{"atomic of none", SendWR{Opcode: AtomicFetchAndAdd}, lim, ErrAtomic},
		{"atomic at a misaligned address", SendWR{Opcode: AtomicFetchAndAdd, RemoteAddr: 20, SGList: sges(8)}, lim, ErrAlign},
		{"WRITE at a misaligned address", SendWR{Opcode: RDMAWrite, RemoteAddr: 20, SGList: sges(8)}, lim, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := Check(rc, &tt.w, tt.lim); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

func TestLength(t *testing.T) {
	w := SendWR{SGList: []SGE{{Length: 1<<32 - 1}, {}, {Length: 2}}, Inline: make([]byte, 5)}
	if got := w.Length(); got != 1<<32+1 {
		t.Errorf("elements: %d, want %d", got, uint64(1<<32+1))
	}
	w.Flags = SendInline
	if got := w.Length(); got != 5 {
		t.Errorf("inline: %d, want 5", got)
	}
	r := RecvWR{SGList: []SGE{{Length: 3}, {Length: 4}}}
	if got := r.Length(); got != 7 {
		t.Errorf("receive: %d, want 7", got)
	}
}

func TestNamesAndValues(t *testing.T) {
	for _, tt := range []struct {
		op    Opcode
		value uint8
		name  string
	}{
		{RDMAWrite, 0, "RDMA_WRITE"},
		{RDMAWriteWithImm, 1, "RDMA_WRITE_WITH_IMM"},
		{Send, 2, "SEND"},
		{SendWithImm, 3, "SEND_WITH_IMM"},
		{RDMARead, 4, "RDMA_READ"},
		{AtomicCmpAndSwp, 5, "ATOMIC_CMP_AND_SWP"},
		{AtomicFetchAndAdd, 6, "ATOMIC_FETCH_AND_ADD"},
		{LocalInv, 7, "LOCAL_INV"},
		{BindMW, 8, "BIND_MW"},
		{SendWithInv, 9, "SEND_WITH_INV"},
		{10, 10, "opcode 10"},
		{255, 255, "opcode 255"},
	} {
		if uint8(tt.op) != tt.value || tt.op.String() != tt.name {
			t.Errorf("%d %q, want %d %q", uint8(tt.op), tt.op, tt.value, tt.name)
		}
	}
	if SendFence != 1 || SendSignaled != 2 || SendSolicited != 4 || SendInline != 8 {
		t.Error("send flags do not have the verbs API's values")
	}
}

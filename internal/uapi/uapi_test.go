package uapi

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/pkg/cq"
	"github.com/softroce/softroce/pkg/wq"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares bytes with testdata/name.golden, a hex dump.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	dump := []byte(hex.Dump(got))
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, dump, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(dump, want) {
		t.Errorf("%s: the layout has changed (a change needs a new Version)\ngot\n%swant\n%s", name, dump, want)
	}
}

// fill sets every field of a message to a value of its own, so that a field
// that is forgotten, doubled or cut is seen.
func fill(v reflect.Value, next *uint64) {
	*next++
	switch v.Kind() {
	case reflect.Pointer:
		fill(v.Elem(), next)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), next)
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i), next)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(v.Index(i), next)
		}
	case reflect.String:
		v.SetString(fmt.Sprintf("text %d", *next))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32:
		v.SetInt(int64(*next))
	case reflect.Uint8:
		v.SetUint(0x80 | *next&0x7f)
	case reflect.Uint16:
		v.SetUint(0xa100 | *next&0xff)
	case reflect.Uint32:
		v.SetUint(0xb2c30000 | *next)
	case reflect.Uint64:
		v.SetUint(0xd4e5f60700000000 | *next)
	default:
		panic(v.Kind().String())
	}
}

// segment returns fresh shared memory.
func segment(tb testing.TB, size int) *shm.Segment {
	tb.Helper()
	s, err := shm.Create("test", size)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Close() })
	return s
}

func newSQ(tb testing.TB, mem Memory, ref RingRef) (*SQProducer, *SQConsumer) {
	tb.Helper()
	c, err := NewSQConsumer(mem, ref)
	if err != nil {
		tb.Fatal(err)
	}
	p, err := NewSQProducer(mem, ref)
	if err != nil {
		tb.Fatal(err)
	}
	return p, c
}

func newRQ(tb testing.TB, mem Memory, ref RingRef) (*RQProducer, *RQConsumer) {
	tb.Helper()
	c, err := NewRQConsumer(mem, ref)
	if err != nil {
		tb.Fatal(err)
	}
	p, err := NewRQProducer(mem, ref)
	if err != nil {
		tb.Fatal(err)
	}
	return p, c
}

func newCQ(tb testing.TB, mem Memory, ref RingRef) (*CQRing, *CQConsumer) {
	tb.Helper()
	r, err := NewCQRing(mem, ref)
	if err != nil {
		tb.Fatal(err)
	}
	c, err := NewCQConsumer(mem, ref)
	if err != nil {
		tb.Fatal(err)
	}
	return r, c
}

// sampleSend has a value of its own in every field.
func sampleSend() wq.SendWR {
	var wr wq.SendWR
	n := uint64(0)
	fill(reflect.ValueOf(&wr), &n)
	wr.Opcode, wr.Flags = wq.RDMAWriteWithImm, wq.SendSignaled|wq.SendFence
	wr.InvalidateRKey, wr.Inline, wr.Bind = 0, nil, wq.Bind{}
	return wr
}

func sampleWC() cq.WC {
	var wc cq.WC
	n := uint64(0)
	fill(reflect.ValueOf(&wc), &n)
	return wc
}

package report

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net/netip"
	"time"

	"github.com/softroce/softroce/conformance/suite"
	"github.com/softroce/softroce/conformance/wire"
	"github.com/softroce/softroce/pkg/bth"
)

var began = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// frame is a packet between 198.18.77.2, the tester, and 198.18.77.1.
func frame(dir wire.Direction, at time.Duration, h bth.Headers, payload int) *wire.Frame {
	roce := h.Append(nil)
	roce = append(roce, make([]byte, payload+4)...)
	src, dst := netip.MustParseAddr("198.18.77.2"), netip.MustParseAddr("198.18.77.1")
	if dir == wire.Received {
		src, dst = dst, src
	}
	ip := make([]byte, 28, 28+len(roce))
	ip[0], ip[6], ip[8], ip[9] = 0x45, 0x40, 64, 17
	binary.BigEndian.PutUint16(ip[2:], uint16(28+len(roce)))
	copy(ip[12:], src.AsSlice())
	copy(ip[16:], dst.AsSlice())
	binary.BigEndian.PutUint16(ip[20:], 0xc000)
	binary.BigEndian.PutUint16(ip[22:], wire.Port)
	binary.BigEndian.PutUint16(ip[24:], uint16(8+len(roce)))
	f := &wire.Frame{Time: began.Add(at), Dir: dir, IP: append(ip, roce...), Src: src, Dst: dst, Roce: roce, ICRCOK: true}
	f.Err = f.RoCE.Parse(roce)
	return f
}

// fakeFrames are a READ and its answer.
func fakeFrames(n int) []*wire.Frame {
	var frames []*wire.Frame
	psn := bth.PSN(0xfffff0 + n%16)
	frames = append(frames, frame(wire.Sent, 120*time.Microsecond, bth.Headers{
		BTH:  bth.BTHFields{Opcode: bth.RCReadRequest, DestQP: 0x12, PSN: psn, AckReq: true, PKey: 0xffff},
		RETH: bth.RETHFields{VA: 0x7f00_0000_1000, RKey: 0x1234, Length: 3000},
	}, 0))
	for i, op := range []bth.Opcode{bth.RCReadResponseFirst, bth.RCReadResponseMiddle, bth.RCReadResponseLast} {
		frames = append(frames, frame(wire.Received, time.Duration(200+40*i)*time.Microsecond, bth.Headers{
			BTH:  bth.BTHFields{Opcode: op, DestQP: 0x99, PSN: (psn + bth.PSN(i)) & 0xffffff, PKey: 0xffff},
			AETH: bth.AETHFields{Syndrome: 0x1f, MSN: 1},
		}, []int{1024, 1024, 952}[i]))
	}
	return frames
}

// fakeResult makes up what came of a statement on a target; the same arguments give the same.
func fakeResult(s suite.Statement, target string) *suite.Result {
	h := fnv.New32a()
	fmt.Fprint(h, target, s.ID)
	r := &suite.Result{Statement: s, Began: began, Took: time.Duration(300+h.Sum32()%4000) * time.Microsecond, Frames: fakeFrames(s.Number)}
	switch n := h.Sum32() % 23; {
	case n == 3:
		r.Outcome, r.Reason, r.Frames = suite.Skip, "the target does not have "+s.ID, nil
	case n == 7 && target != "softroce":
		r.Outcome, r.Reason = suite.Fail, "expected a NAK 0x60 with PSN 5, got nothing for 30 ms"
	case n == 11 && target != "softroce":
		r.Outcome, r.Reason = suite.Fail, `the agent did not do "qp": <EINVAL> & more`
	case n == 13:
		r.Notes = []string{"the second of the allowed answers"}
	}
	return r
}

// fakeRun is a run over every statement.
func fakeRun(name string, ex *Exceptions) *Run {
	r := &Run{
		Format: Format, Seed: 1, Began: began, MS: 4321.5,
		Target:   Target{Name: name, Host: "198.18.77.1", Agent: "softroce 1.0", Device: "softroce0", Features: []string{"uc", "ud"}},
		Versions: Versions{Softroce: "1.0", Protocol: 1},
	}
	for _, s := range suite.Statements() {
		r.Add(NewCase(fakeResult(s, name), suite.Ladder, ex))
	}
	return r
}

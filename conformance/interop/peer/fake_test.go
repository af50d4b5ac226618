package main

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// wireless is an End that executes at once in its peer's memory: enough of an adapter to try the judge on. fault, when set,
// may bend what it does, as a wrong adapter would; so does each bad thing by its name.
type wireless struct {
	o       openRequest
	gid     string
	mem     []byte
	peer    *wireless
	recvs   []recvWR
	wcs     []completion
	state   map[int]int // by queue pair
	handles []string    // GIDs
	groups  map[string]bool
	windows []*fakeWindow
	limit   int
	events  []int
	fault   func(w *wireless, wr *sendWR)
	bad     string
}

type fakeWindow struct {
	key   uint32
	typ   int
	b     bindWR
	bound bool
}

const (
	fakeAddr = 0x10000
	fakeKey  = 0x100
	fakeQPN  = 7
)

func (w *wireless) Open(o openRequest) (identity, error) {
	w.o, w.mem, w.state, w.groups = o, make([]byte, o.Size), map[int]int{}, map[string]bool{}
	if w.gid == "" {
		w.gid = "::ffff:10.0.0.1"
	}
	if o.IPv6 {
		w.gid = map[string]string{"::ffff:10.0.0.1": "fd00::1", "::ffff:10.0.0.2": "fd00::2"}[w.gid]
	}
	id := identity{GID: w.gid, Addr: fakeAddr, RKey: fakeKey}
	for i := range o.QPs {
		id.QPNs = append(id.QPNs, uint32(fakeQPN+i))
	}
	return id, nil
}

func (w *wireless) Connect(connectRequest) error { return nil }
func (w *wireless) State() (int, error)          { return w.state[0], nil }
func (w *wireless) Close()                       {}

func (w *wireless) Break() error {
	w.state[0] = stateErr
	for _, r := range w.recvs {
		w.done(completion{ID: r.ID, Status: statusFlushed})
	}
	w.recvs = nil
	return nil
}

func (w *wireless) WriteMem(off int, b []byte) error {
	copy(w.mem[off:], b)
	return nil
}

func (w *wireless) ReadMem(off, n int) ([]byte, error) { return slices.Clone(w.mem[off : off+n]), nil }

func (w *wireless) PostRecv(wrs []recvWR) error {
	w.recvs = append(w.recvs, wrs...)
	return nil
}

func (w *wireless) done(c completion) {
	if c.QPN == 0 {
		c.QPN = fakeQPN
	}
	w.wcs = append(w.wcs, c)
}

func (w *wireless) Poll(count, _ int) ([]completion, error) {
	n := min(count, len(w.wcs))
	got := w.wcs[:n]
	w.wcs = w.wcs[n:]
	return got, nil
}

func (w *wireless) Handle(gid string) (int, error) {
	w.handles = append(w.handles, gid)
	return len(w.handles) - 1, nil
}

func (w *wireless) Answer(uint64, int) (int, error) { return w.Handle(w.peer.gid) }

func (w *wireless) Group(gid string, join bool) error {
	w.groups[gid] = join
	return nil
}

func (w *wireless) Window(typ int) (int, uint32, error) {
	n := len(w.windows)
	w.windows = append(w.windows, &fakeWindow{key: uint32(0x1000 + n<<8), typ: typ})
	return n, w.windows[n].key, nil
}

func (w *wireless) Bind(b bindWR) (uint32, error) {
	win := w.windows[b.MW]
	if w.bad != "the old key stays" {
		win.key++
	}
	win.b, win.bound = b, b.Len > 0
	w.done(completion{ID: b.ID, Op: wcBindMW})
	return win.key, nil
}

func (w *wireless) Rereg(access int) (uint32, error) {
	if w.bad != "rights stay" {
		w.o.Access = access
	}
	return fakeKey, nil
}

func (w *wireless) Limit(limit int) error {
	w.limit = limit
	return nil
}

func (w *wireless) Event(int) (int, error) {
	if len(w.events) == 0 {
		return -1, nil
	}
	e := w.events[0]
	w.events = w.events[1:]
	return e, nil
}

func (w *wireless) PostSend(wrs []sendWR) error {
	for _, wr := range wrs {
		if w.state[wr.QP] == stateErr {
			w.done(completion{ID: wr.ID, Status: statusFlushed})
			continue
		}
		if w.fault != nil {
			w.fault(w, &wr)
		}
		w.execute(wr)
	}
	return nil
}

func (w *wireless) execute(wr sendWR) {
	done := completion{ID: wr.ID, Op: wcOpcode[wr.Op], QPN: uint32(fakeQPN + wr.QP)}
	takes := slices.Contains([]int{opSend, opSendImm, opSendInv, opWriteImm}, wr.Op)
	switch {
	case takes && len(w.peer.recvs) == 0 && w.o.Type == typeRC:
		done.Status = statusRNRRetryExc
	case !takes && wr.Op < opLocalInv && !w.peer.allows(wr):
		done.Status = statusRemAccess
		defer func() { _ = w.peer.Break() }()
	case w.reaches(wr) && (!takes || len(w.peer.recvs) > 0):
		w.effect(wr, takes)
	}
	if done.Status != statusSuccess {
		w.state[wr.QP] = stateErr
	}
	if wr.Flags&flagSignaled != 0 || done.Status != statusSuccess {
		w.done(done)
	}
}

// reaches says whether a datagram comes to the peer; all else does.
func (w *wireless) reaches(wr sendWR) bool {
	if w.o.Type != typeUD {
		return true
	}
	if wr.QKey != rightQKey && wr.QKey>>31 == 0 && w.bad != "any Q_Key" {
		return false
	}
	return wr.RemoteQPN == fakeQPN || wr.RemoteQPN == groupQPN && (w.peer.groups[w.handles[wr.AH]] || w.bad == "any group")
}

// allows says whether a peer's request has the rights.
func (w *wireless) allows(wr sendWR) bool {
	off, n := int(wr.Addr-fakeAddr), total(wr.SGEs)
	need := map[int]int{opWrite: accessWrite, opWriteImm: accessWrite, opRead: accessRead}[wr.Op]
	if need == 0 {
		need = accessAtomic
	}
	if wr.RKey == fakeKey {
		return off+n <= len(w.mem) && w.o.Access&need != 0
	}
	for _, win := range w.windows {
		if win.key != wr.RKey || !win.bound || win.typ == window2 && wr.QP != 0 {
			continue
		}
		return win.b.Access&need != 0 && off >= win.b.Off && off+n <= win.b.Off+win.b.Len || w.bad == "a window without bounds"
	}
	return false
}

func (w *wireless) invalidate(key uint32) {
	for _, win := range w.windows {
		if win.key == key && w.bad != "the key stays" {
			win.bound = false
		}
	}
}

func (w *wireless) effect(wr sendWR, takes bool) {
	var data []byte
	for _, g := range wr.SGEs {
		data = append(data, w.mem[g[0]:][:g[1]]...)
	}
	at := int(wr.Addr - fakeAddr)
	switch wr.Op {
	case opLocalInv:
		w.invalidate(wr.Inv)
	case opSendInv:
		w.peer.invalidate(wr.Inv)
	case opWrite, opWriteImm:
		copy(w.peer.mem[at:], data)
	case opRead, opCmpSwap, opFetchAdd:
		old := slices.Clone(w.peer.mem[at:][:total(wr.SGEs)])
		if v := w.peer.mem[at:]; wr.Op == opFetchAdd {
			binary.LittleEndian.PutUint64(v, binary.LittleEndian.Uint64(v)+wr.CompareAdd)
		} else if wr.Op == opCmpSwap && binary.LittleEndian.Uint64(v) == wr.CompareAdd {
			binary.LittleEndian.PutUint64(v, wr.Swap)
		}
		spread(w.mem, wr.SGEs, old)
	}
	if takes {
		w.peer.receive(w, wr, data)
	}
}

// receive takes the oldest receive for what the peer sent.
func (w *wireless) receive(from *wireless, wr sendWR, data []byte) {
	i := 0
	if w.bad == "receives out of order" {
		i = len(w.recvs) - 1
	}
	r := w.recvs[i]
	w.recvs = slices.Delete(w.recvs, i, i+1)
	if w.limit > 0 && (len(w.recvs) < w.limit || w.bad == "an early event") {
		w.limit = 0
		if w.bad != "no event" {
			w.events = append(w.events, 4, eventSRQLimit)
		}
	}
	c := completion{ID: r.ID, Op: wcRecv, Len: len(data), QPN: uint32(fakeQPN + wr.QP)}
	switch wr.Op {
	case opWriteImm:
		c.Op, c.Flags, c.Imm = wcRecvImm, wcFlagImm, wr.Imm
	case opSendImm:
		c.Flags, c.Imm = wcFlagImm, wr.Imm
	case opSendInv:
		c.Flags, c.Inv = wcFlagInv, wr.Inv
	}
	if w.o.Type == typeUD {
		to := from.handles[wr.AH]
		spread(w.mem, r.SGEs, append(fakeHeader(from.gid, to, w.bad), data...))
		c.Flags, c.Len, c.SrcQP = c.Flags|wcFlagGRH, c.Len+headerArea, fakeQPN
	} else if wr.Op != opWriteImm {
		spread(w.mem, r.SGEs, data)
	}
	w.done(w.bent(c))
}

// bent is the completion as a wrong adapter has it.
func (w *wireless) bent(c completion) completion {
	switch w.bad {
	case "no header flag":
		c.Flags &^= wcFlagGRH
	case "a length without the header":
		c.Len -= headerArea
	case "another sender":
		c.SrcQP++
	case "no invalidated key":
		c.Flags &^= wcFlagInv
	case "another invalidated key":
		c.Inv++
	case "another queue pair":
		c.QPN++
	}
	return c
}

// fakeHeader is the header area of a datagram.
func fakeHeader(from, to, bad string) []byte {
	src, dst := netip.MustParseAddr(from), netip.MustParseAddr(to)
	if bad == "another source" {
		src = dst
	}
	b := make([]byte, headerArea)
	if !src.Is4In6() {
		b[0], b[6] = 0x60, 17
		copy(b[8:], src.AsSlice())
		copy(b[24:], dst.AsSlice())
		return b
	}
	ip := b[20:]
	ip[0], ip[8], ip[9] = 0x45, 64, 17
	copy(ip[12:], src.Unmap().AsSlice())
	copy(ip[16:], dst.Unmap().AsSlice())
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	if bad != "no checksum" {
		binary.BigEndian.PutUint16(ip[10:], ^uint16(sum>>16+sum))
	}
	return b
}

func spread(mem []byte, sges []span, b []byte) {
	for _, g := range sges {
		b = b[copy(mem[g[0]:][:g[1]], b):]
	}
}

// judge plays a case between two of them and returns the reason why it failed, or "". Faults are the requester's, what is bad
// is the responder's, too.
func judge(c verbsCase, fault func(w *wireless, wr *sendWR), bad string) (reason string) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case failure:
			reason = r.text
		default:
			panic(r)
		}
	}()
	var links []*link
	for range max(1, c.connections) {
		a, b := &wireless{fault: fault, bad: bad}, &wireless{gid: "::ffff:10.0.0.2", bad: bad}
		a.peer, b.peer = b, a
		links = append(links, newLink(c.name, c.setup, &side{name: "a", end: a}, &side{name: "b", end: b}, func(string, ...any) {}))
	}
	if c.runMany != nil {
		c.runMany(links)
	} else {
		c.run(links[0])
	}
	return ""
}

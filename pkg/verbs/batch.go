package verbs

import (
	"errors"

	"github.com/softroce/softroce/pkg/wq"
)

// SendOps are operations of a queue pair (ibv_qp_create_send_ops_flags).
type SendOps uint64

// Operations (specification values: ibv_qp_create_send_ops_flags).
const (
	QPExWithRDMAWrite        SendOps = 1 << wq.RDMAWrite
	QPExWithRDMAWriteWithImm SendOps = 1 << wq.RDMAWriteWithImm
	QPExWithSend             SendOps = 1 << wq.Send
	QPExWithSendWithImm      SendOps = 1 << wq.SendWithImm
	QPExWithRDMARead         SendOps = 1 << wq.RDMARead
	QPExWithAtomicCmpAndSwp  SendOps = 1 << wq.AtomicCmpAndSwp
	QPExWithAtomicFetchAdd   SendOps = 1 << wq.AtomicFetchAndAdd
	QPExWithLocalInv         SendOps = 1 << wq.LocalInv
	QPExWithBindMW           SendOps = 1 << wq.BindMW
	QPExWithSendWithInv      SendOps = 1 << wq.SendWithInv
)

// sendOpsOf are the operations that a type of queue pair has.
func sendOpsOf(t QPType) (ops SendOps) {
	for op := wq.RDMAWrite; op <= wq.SendWithInv; op++ {
		if !errors.Is(wq.Check(uint8(t), &SendWR{Opcode: op}, wq.Limits{}), wq.ErrOpcode) {
			ops |= 1 << op
		}
	}
	return ops
}

// Batch builds several send requests that are posted together, or not at all
// (ibv_wr_start and its like). Each operation begins a request, with the WRID
// and Flags that the fields have at that moment; the Set methods that follow say
// what it is about: one for its data, and SetUDAddr for a datagram. A Batch
// belongs to one goroutine.
type Batch struct {
	WRID  uint64
	Flags SendFlags // but for SendInline, which SetInlineData sets

	q    *QP
	open bool
	wr   SendWR // begun and not put
	has  bool   // there is one
	err  error  // the first
	from uint32 // where the send queue stood

	one    [1]SGE
	inline []byte
}

// WRStart begins a batch (ibv_wr_start). It locks the queue pair: WRComplete or
// WRAbort must follow, and until then this goroutine makes no other call on it.
func (q *QP) WRStart() *Batch {
	q.mu.Lock()
	b := &q.batch
	*b = Batch{q: q, open: true, from: q.sent.head, inline: b.inline[:0]}
	return b
}

// Send begins a SEND (ibv_wr_send).
func (b *Batch) Send() { b.begin(SendWR{Opcode: wq.Send}) }

// SendImm begins a SEND with immediate data, a host value (ibv_wr_send_imm).
func (b *Batch) SendImm(imm uint32) { b.begin(SendWR{Opcode: wq.SendWithImm, ImmData: imm}) }

// SendInv begins a SEND that invalidates a key of the peer's (ibv_wr_send_inv).
func (b *Batch) SendInv(k RKey) { b.begin(SendWR{Opcode: wq.SendWithInv, InvalidateRKey: k}) }

// RDMAWrite begins an RDMA WRITE (ibv_wr_rdma_write).
func (b *Batch) RDMAWrite(k RKey, remoteAddr uint64) {
	b.begin(SendWR{Opcode: wq.RDMAWrite, RKey: k, RemoteAddr: remoteAddr})
}

// RDMAWriteImm begins an RDMA WRITE with immediate data, a host value
// (ibv_wr_rdma_write_imm).
func (b *Batch) RDMAWriteImm(k RKey, remoteAddr uint64, imm uint32) {
	b.begin(SendWR{Opcode: wq.RDMAWriteWithImm, RKey: k, RemoteAddr: remoteAddr, ImmData: imm})
}

// RDMARead begins an RDMA READ (ibv_wr_rdma_read).
func (b *Batch) RDMARead(k RKey, remoteAddr uint64) {
	b.begin(SendWR{Opcode: wq.RDMARead, RKey: k, RemoteAddr: remoteAddr})
}

// AtomicCmpSwp begins a compare-and-swap (ibv_wr_atomic_cmp_swp).
func (b *Batch) AtomicCmpSwp(k RKey, remoteAddr, compare, swap uint64) {
	b.begin(SendWR{Opcode: wq.AtomicCmpAndSwp, RKey: k, RemoteAddr: remoteAddr, CompareAdd: compare, Swap: swap})
}

// AtomicFetchAdd begins a fetch-and-add (ibv_wr_atomic_fetch_add).
func (b *Batch) AtomicFetchAdd(k RKey, remoteAddr, add uint64) {
	b.begin(SendWR{Opcode: wq.AtomicFetchAndAdd, RKey: k, RemoteAddr: remoteAddr, CompareAdd: add})
}

// LocalInv begins the invalidation of a key of the program's own
// (ibv_wr_local_inv).
func (b *Batch) LocalInv(k RKey) { b.begin(SendWR{Opcode: wq.LocalInv, InvalidateRKey: k}) }

// BindMW begins the bind of a window of type 2 under the key k (ibv_wr_bind_mw).
func (b *Batch) BindMW(mw *MW, k RKey, bind Bind) {
	bind.RKey = k
	b.begin(SendWR{Opcode: wq.BindMW, Bind: bind})
	if b.err == nil && uint32(k)>>8 != uint32(mw.RKey())>>8 {
		b.err = invalid("bind MW", "key %#x is not the window's", uint32(k))
	}
}

// SetSGE sets the request's memory (ibv_wr_set_sge).
func (b *Batch) SetSGE(k LKey, addr uint64, length uint32) {
	b.one[0] = SGE{Addr: addr, Length: length, LKey: k}
	b.wr.SGList = b.one[:]
}

// SetSGEList sets the request's memory (ibv_wr_set_sge_list). The list is read
// until the next operation or the end of the batch.
func (b *Batch) SetSGEList(list []SGE) { b.wr.SGList = list }

// SetInlineData sets the request's payload, which is copied
// (ibv_wr_set_inline_data).
func (b *Batch) SetInlineData(data []byte) { b.SetInlineDataList(data) }

// SetInlineDataList sets the request's payload from several pieces, which are
// copied (ibv_wr_set_inline_data_list).
func (b *Batch) SetInlineDataList(pieces ...[]byte) {
	b.inline = b.inline[:0]
	for _, p := range pieces {
		b.inline = append(b.inline, p...)
	}
	b.wr.Inline, b.wr.SGList = b.inline, nil
	b.wr.Flags |= SendInline
}

// SetUDAddr sets where a datagram goes (ibv_wr_set_ud_addr).
func (b *Batch) SetUDAddr(ah *AH, remoteQPN QPN, remoteQKey QKey) {
	b.wr.AH, b.wr.RemoteQPN, b.wr.RemoteQKey = ah.Handle(), remoteQPN, remoteQKey
}

// WRComplete posts the batch and ends it (ibv_wr_complete). The error is the
// first of its requests', as for PostSend; none is posted then.
func (b *Batch) WRComplete() error {
	if !b.open {
		return invalid("post send", "the batch is over")
	}
	b.put()
	err := b.err
	if err != nil {
		b.drop()
	} else if b.q.sent.head != b.from {
		b.q.publish()
	}
	b.end()
	return err
}

// WRAbort ends the batch and posts nothing (ibv_wr_abort).
func (b *Batch) WRAbort() {
	if b.open {
		b.drop()
		b.end()
	}
}

// begin puts the request that was begun before, and begins wr.
func (b *Batch) begin(wr SendWR) {
	b.put()
	b.wr, b.has = wr, true
	b.wr.WRID, b.wr.Flags = b.WRID, b.Flags
	if b.open && b.err == nil && b.q.ops != 0 && b.q.ops>>wr.Opcode&1 == 0 {
		b.err = invalid("post send", "%v is not among the operations that the queue pair was made with", wr.Opcode)
	}
}

func (b *Batch) put() {
	if b.has && b.open && b.err == nil {
		b.err = b.q.putSend(&b.wr)
	}
	b.has = false
}

// drop takes back what was put.
func (b *Batch) drop() {
	b.q.sq.Rollback()
	b.q.sent.takeBack(b.from)
	b.q.binds = b.q.binds[:0]
}

func (b *Batch) end() {
	b.open, b.wr = false, SendWR{}
	b.q.mu.Unlock()
}

package scenario

import (
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/transport"
	"github.com/softroce/softroce/pkg/wq"
)

// onlyHandle is the one address handle that there is: the peer's.
const onlyHandle = 1

// Path implements transport.AddressHandles.
func (e *endpoint) Path(ah uint32, _ mrtable.PD, _ bth.QPN) *transport.Path {
	if ah != onlyHandle {
		return nil
	}
	return &transport.Path{Src: ownGID, Dst: peerGID, SrcPort: udpPort, HopLimit: 64, MTU: uint32(e.attr.PathMTU.Bytes())}
}

// address reads the words that say where a datagram goes.
func (s *script) address(wr *wq.SendWR, w *words) {
	wr.AH = uint32(w.num("ah", onlyHandle))
	wr.RemoteQPN = bth.QPN(w.num("qpn", uint64(s.e.peer)))
	wr.RemoteQKey = bth.QKey(w.num("qkey", uint64(s.e.attr.QKey)))
}

// sharedQueue is the shared receive queue of the queue pairs that were made with
// the word srq.
func (s *script) sharedQueue() *wq.RecvQueue {
	if s.srq == nil {
		s.srq = wq.NewRecvQueue(queueLen)
	}
	return s.srq
}

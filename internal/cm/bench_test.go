package cm_test

import (
	"testing"

	"github.com/softroce/softroce/internal/cm"
	"github.com/softroce/softroce/pkg/bth"
)

// BenchmarkConnection is both sides of one connection, up and down, without a
// network: what the connection manager itself costs.
func BenchmarkConnection(b *testing.B) {
	p := newPair(b)
	p.b.listen()
	b.ReportAllocs()
	qpn := bth.QPN(16)
	for b.Loop() {
		qpn++
		if qpn == bth.MulticastQPN {
			qpn = 16
		}
		x, y := p.connectAs(qpn, qpn)
		ok(b, p.a.Disconnect(p.now, x, nil))
		p.exchange()
		p.b.expect(cm.Disconnected)
		ok(b, p.b.Disconnect(p.now, y, nil))
		p.exchange()
		p.advance(1 << 30)
		ok(b, p.a.Destroy(p.now, x))
		ok(b, p.b.Destroy(p.now, y))
	}
	if n := p.a.Counters().Conns + p.b.Counters().Conns; n != 0 {
		b.Errorf("%d ids left", n)
	}
}

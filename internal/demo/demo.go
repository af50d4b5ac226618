package demo

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"time"

	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/verbs"
)

// Config says where the two adapters are.
type Config struct {
	// Addrs are the two addresses, of this host and different. Zero means
	// 127.0.0.1 and 127.0.0.2.
	Addrs [2]netip.Addr
	// Capture gets a pcapng of what the first adapter sends and receives; nil:
	// none.
	Capture io.Writer
	// Log gets what the adapters have to say; nil discards.
	Log *slog.Logger
	// Step is called before each step with its name, for progress; nil: not.
	Step func(name string)
	// Connected is called with the adapters when the queue pairs are connected,
	// before anything is sent; nil: not. For tests.
	Connected func(a, b *adapter.Adapter)
	// Change is called with each adapter's configuration before it starts; nil:
	// not. For tests.
	Change func(*adapter.Config)
}

// Row is one step's outcome.
type Row struct {
	Verb    string        `json:"verb"`
	What    string        `json:"what"`
	Bytes   int           `json:"bytes"`   // moved in all
	Count   int           `json:"count"`   // operations
	Elapsed time.Duration `json:"elapsed"` // ns, of all operations
	Checked bool          `json:"checked"` // the data was compared and right
}

// Report is what a whole run did.
type Report struct {
	Device [2]string     `json:"device"` // the adapters' addresses
	QPN    [2]uint32     `json:"qpn"`
	MTU    int           `json:"mtu"` // path MTU in bytes
	Rows   []Row         `json:"rows"`
	Took   time.Duration `json:"took"` // ns
}

// Run starts the adapters, connects a queue pair of each and runs all steps.
// The first step that fails, or data that is not right, ends it with an error
// that names the step.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	if !cfg.Addrs[0].IsValid() {
		cfg.Addrs = [2]netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")}
	}
	start := time.Now()
	a, err := startSide(&cfg, 0)
	if err != nil {
		return nil, err
	}
	defer a.close()
	b, err := startSide(&cfg, 1)
	if err != nil {
		return nil, err
	}
	defer b.close()
	if err := connect(a, b); err != nil {
		return nil, err
	}
	if cfg.Connected != nil {
		cfg.Connected(a.adapter, b.adapter)
	}
	rep := &Report{
		Device: [2]string{cfg.Addrs[0].String(), cfg.Addrs[1].String()},
		QPN:    [2]uint32{uint32(a.qp.Num()), uint32(b.qp.Num())},
		MTU:    a.mtu,
	}
	for _, s := range steps {
		if cfg.Step != nil {
			cfg.Step(s.verb)
		}
		row := Row{Verb: s.verb, What: s.what}
		t := time.Now()
		if err := s.run(ctx, a, b, &row); err != nil {
			return rep, fmt.Errorf("demo: %s: %w", s.verb, err)
		}
		if row.Elapsed == 0 {
			row.Elapsed = time.Since(t)
		}
		rep.Rows = append(rep.Rows, row)
	}
	rep.Took = time.Since(start)
	return rep, nil
}

// regionSize is each side's memory.
const regionSize = 8 << 20

// A side is one of the two programs.
type side struct {
	adapter *adapter.Adapter
	dev     *verbs.Device
	cq      *verbs.CQ
	mr      *verbs.MR
	qp      *verbs.QP
	gid     verbs.GID
	psn     verbs.PSN
	mtu     int
}

func startSide(cfg *Config, i int) (s *side, err error) {
	s = &side{psn: verbs.PSN(0x100 * (i + 1))}
	ac := adapter.Config{Name: fmt.Sprintf("demo%d", i), Addrs: []netip.Addr{cfg.Addrs[i]}, Log: cfg.Log}
	if i == 0 {
		ac.Capture = cfg.Capture
	}
	if cfg.Change != nil {
		cfg.Change(&ac)
	}
	if s.adapter, err = adapter.Start(ac); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.dev, err = s.adapter.Open(); err != nil {
		return nil, err
	}
	return s, s.makeObjects()
}

// makeObjects makes what a program makes: domain, region, queues.
func (s *side) makeObjects() error {
	pd, err := s.dev.AllocPD()
	if err != nil {
		return err
	}
	access := verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
	if s.mr, err = pd.AllocMR(regionSize, access); err != nil {
		return err
	}
	if s.cq, err = s.dev.CreateCQ(256, nil, 0); err != nil {
		return err
	}
	s.qp, err = pd.CreateQP(&verbs.QPInitAttr{
		Type: verbs.RC, SendCQ: s.cq, RecvCQ: s.cq,
		Cap: verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 64},
	})
	if err != nil {
		return err
	}
	s.gid, err = s.dev.QueryGID(0)
	return err
}

// connect tells each side of the other and takes both to RTS.
func connect(a, b *side) error {
	for _, x := range [][2]*side{{a, b}, {b, a}} {
		us, peer := x[0], x[1]
		port, err := us.dev.QueryPort(1)
		if err != nil {
			return err
		}
		us.mtu = port.ActiveMTU.Bytes()
		err = us.qp.ConnectRC(verbs.RCPeer{QPN: peer.qp.Num(), PSN: peer.psn, GID: peer.gid}, verbs.RCConfig{PSN: us.psn})
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *side) close() {
	if s.dev != nil {
		_ = s.dev.Close() // the adapter releases all of it in any case
	}
	_ = s.adapter.Close() // nothing to do about it at the end
}

package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/softroce/softroce/pkg/rdmacm"
	"github.com/softroce/softroce/pkg/verbs"
)

// matose is what rdma-core's ucmatose does, on softroce: connections by the connection manager, over each of which the server
// sends a number of messages and then the client as many; the server disconnects.
type matose struct {
	conns, count, size int
	dev                *verbs.Device
	ends               []*matoseEnd
}

// A matoseEnd is one connection's.
type matoseEnd struct {
	pd   *verbs.PD
	cq   *verbs.CQ
	mr   *verbs.MR
	conn *rdmacm.Conn
	have [2]int   // receives and sends that have completed
	last verbs.WC // the last receive's
	head int      // bytes in front of a message
}

const matosePort = 7471

func (s softroceHost) ucmatose(ctx context.Context, options, server string, listens func()) (string, error) {
	return s.matose(ctx, false, options, server, listens)
}

func (s softroceHost) udaddy(ctx context.Context, options, server string, listens func()) (string, error) {
	return s.matose(ctx, true, options, server, listens)
}

func (s softroceHost) matose(ctx context.Context, datagrams bool, options, server string, listens func()) (string, error) {
	dev, err := verbs.Open(&verbs.Options{Socket: s.d.socket})
	if err != nil {
		return "", err
	}
	defer func() { _ = dev.Close() }() // gives everything else back, too
	m := &matose{dev: dev}
	flags := flag.NewFlagSet("ucmatose", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.String("b", "", "") // it listens on all addresses
	flags.IntVar(&m.conns, "c", 1, "")
	flags.IntVar(&m.count, "C", 10, "")
	flags.IntVar(&m.size, "S", 100, "")
	if err := flags.Parse(strings.Fields(options)); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, rpingLimit)
	defer cancel()
	if datagrams {
		err = m.daddy(ctx, server, listens)
	} else if server == "" {
		err = m.serve(ctx, listens)
	} else {
		err = m.connect(ctx, server)
	}
	if err != nil {
		return "", err
	}
	return "data transfers complete", nil
}

// config makes what a connection needs.
func (m *matose) config() (*matoseEnd, *rdmacm.Config, error) {
	e := &matoseEnd{}
	var err error
	if e.pd, err = m.dev.AllocPD(); err != nil {
		return nil, nil, err
	}
	if e.cq, err = m.dev.CreateCQ(2*m.count, nil, 0); err != nil {
		return nil, nil, err
	}
	if e.mr, err = e.pd.AllocMR(2*m.size, verbs.AccessLocalWrite); err != nil {
		return nil, nil, err
	}
	limits := verbs.QPCap{MaxSendWR: uint32(m.count), MaxRecvWR: uint32(m.count), MaxSendSGE: 1, MaxRecvSGE: 1}
	return e, &rdmacm.Config{
		PD: e.pd, QP: verbs.QPInitAttr{Type: verbs.RC, SendCQ: e.cq, RecvCQ: e.cq, Cap: limits},
		Prepare: func(id *rdmacm.ID) error {
			for range m.count {
				if _, err := id.QP().PostRecv(verbs.RecvWR{WRID: 0, SGList: []verbs.SGE{e.mr.SGE(0, m.size)}}); err != nil {
					return err
				}
			}
			return nil
		},
	}, nil
}

func (m *matose) connect(ctx context.Context, server string) error {
	to, err := netip.ParseAddr(server)
	if err != nil {
		return err
	}
	for range m.conns {
		e, conf, err := m.config()
		if err != nil {
			return err
		}
		if e.conn, err = rdmacm.Dial(ctx, m.dev, netip.AddrPortFrom(to, matosePort), conf); err != nil {
			return err
		}
		m.ends = append(m.ends, e)
	}
	if err := m.receive(ctx); err != nil {
		return err
	}
	if err := m.post(); err != nil {
		return err
	}
	for i, e := range m.ends { // the server has all then, also what was flushed before its acknowledgement was read
		select {
		case <-e.conn.Done():
		case <-ctx.Done():
			return fmt.Errorf("the server did not disconnect connection %d: %w", i, ctx.Err())
		}
	}
	return m.close()
}

func (m *matose) serve(ctx context.Context, listens func()) error {
	l, err := rdmacm.Listen(m.dev, netip.AddrPortFrom(netip.Addr{}, matosePort), nil)
	if err != nil {
		return err
	}
	defer l.Close()
	listens()
	for range m.conns {
		e, conf, err := m.config()
		if err != nil {
			return err
		}
		if e.conn, err = l.Accept(ctx, conf); err != nil {
			return err
		}
		m.ends = append(m.ends, e)
	}
	if err := m.send(ctx); err != nil {
		return err
	}
	if err := m.receive(ctx); err != nil {
		return err
	}
	for _, e := range m.ends {
		if err := e.conn.Disconnect(); err != nil {
			return err
		}
	}
	return m.close()
}

func (m *matose) close() error {
	for _, e := range m.ends {
		if err := e.conn.Close(); err != nil {
			return err
		}
	}
	return nil
}

func (m *matose) send(ctx context.Context) error {
	if err := m.post(); err != nil {
		return err
	}
	return m.await(ctx, 1)
}

// post posts the sends of every connection.
func (m *matose) post() error {
	for _, e := range m.ends {
		for range m.count {
			wr := verbs.SendWR{WRID: 1, Opcode: verbs.WRSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{e.mr.SGE(m.size, m.size)}}
			if _, err := e.conn.QP().PostSend(wr); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *matose) receive(ctx context.Context) error { return m.await(ctx, 0) }

// await returns once all requests of a kind have completed on every connection.
func (m *matose) await(ctx context.Context, kind int) error {
	for i, e := range m.ends {
		for e.have[kind] < m.count {
			var wcs [16]verbs.WC
			n, err := e.cq.Poll(wcs[:])
			if err != nil {
				return err
			}
			for _, wc := range wcs[:n] {
				if wc.Status != verbs.WCSuccess || wc.WRID == 0 && wc.ByteLen != uint32(e.head+m.size) {
					return fmt.Errorf("connection %d: request %d ended with %v, %d bytes", i, wc.WRID, wc.Status, wc.ByteLen)
				}
				if e.have[wc.WRID]++; wc.WRID == 0 {
					e.last = wc
				}
			}
			if n == 0 && !pause(ctx, time.Millisecond) {
				return fmt.Errorf("connection %d: %d of %d completions of kind %d: %w", i, e.have[kind], m.count, kind, ctx.Err())
			}
		}
	}
	return nil
}

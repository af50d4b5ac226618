package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/softroce/softroce/internal/pingpong"
	"github.com/softroce/softroce/pkg/bth"
	"github.com/softroce/softroce/pkg/verbs"
)

// pingpongFlags are the options as given.
type pingpongFlags struct {
	socket string
	device string
	ibPort int
	mtu    int
	size   int
	json   bool
	cfg    pingpong.Config
}

func newPingpongCmd() *cobra.Command {
	c := pingpongCmd(pingpong.RC)
	c.Use = "pingpong [rc | uc | ud | srq] [flags] [HOST]"
	c.Short = "Send a message to and fro, with softroce or rdma-core's ibv_*_pingpong"
	c.Long = `pingpong sends a message to and fro and prints how long it took. Without HOST it is the server and waits for
one client; with HOST it is the client. The first word says how the message travels; without it, as with rc.

  rc    a reliable connection                              ibv_rc_pingpong
  uc    an unreliable connection                           ibv_uc_pingpong
  ud    datagrams, which the port's MTU bounds             ibv_ud_pingpong
  srq   many reliable connections, one receive queue       ibv_srq_pingpong

Each speaks the TCP exchange of rdma-core's program beside it and takes its options, so either end can be that
program, on any RoCEv2 adapter. Both ends need the same service, -s, -n, -m and -q. The message goes through the
daemon that --socket names.

With -c each end checks what it received last, the client against what it sent, and the server against what a
client with -c sends. Wrong data is printed by page; the exit status is then 1.`
	c.Example = `  softroce pingpong                               # server
  softroce pingpong 192.0.2.1                     # client
  softroce pingpong ud -c -s 64 192.0.2.1         # client, datagrams
  ibv_rc_pingpong -d rxe0 -g 1 192.0.2.1          # a client on another adapter`
	for _, s := range []struct {
		service           pingpong.Service
		short, how, extra string
	}{
		{pingpong.RC, "over a reliable connection", "a reliable connection", ""},
		{
			pingpong.UC, "over an unreliable connection", "an unreliable connection", `
A message of which a packet is lost does not arrive, and nobody sends it again: the run then ends with an error
after --patience.`,
		},
		{
			pingpong.UD, "as datagrams", "datagrams", `
A message is one packet: -s is at most the port's active MTU (see softroce devinfo). One that is lost does not
arrive, and nobody sends it again: the run then ends with an error after --patience.`,
		},
		{
			pingpong.SRQ, "over many reliable connections with one receive queue", "many reliable connections at a time", `
All of them (-q) take their receives from one shared receive queue. -n counts the exchanges of all together.`,
		},
	} {
		sub := pingpongCmd(s.service)
		sub.Use = s.service.String() + " [flags] [HOST]"
		sub.Short = "Send a message to and fro " + s.short
		sub.Long = sub.Short + `, with softroce or rdma-core's ` + s.service.Program() + `.
Without HOST this is the server, which waits for one client.
` + s.extra
		c.AddCommand(sub)
	}
	return c
}

// pingpongCmd is the command of one service, without its texts.
func pingpongCmd(service pingpong.Service) *cobra.Command {
	f := &pingpongFlags{mtu: pingpong.DefaultMTU.Bytes(), cfg: pingpong.Config{Service: service}}
	c := &cobra.Command{
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 {
				f.cfg.Host = args[0]
			}
			return runPingpong(c.Context(), f, c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	fl := c.Flags()
	fl.IntVarP(&f.cfg.Port, "port", "p", pingpong.Port, "TCP port of the exchange")
	fl.StringVarP(&f.device, "ib-dev", "d", "", "name that the adapter must have (default: any)")
	fl.IntVarP(&f.ibPort, "ib-port", "i", 1, "port of the adapter, which has one")
	fl.IntVarP(&f.size, "size", "s", service.DefaultSize(), "bytes of the message")
	if service == pingpong.SRQ {
		fl.IntVarP(&f.cfg.QPs, "num-qp", "q", pingpong.DefaultQPs, "number of queue pairs")
	}
	if service != pingpong.UD { // it takes the port's
		fl.IntVarP(&f.mtu, "mtu", "m", pingpong.DefaultMTU.Bytes(), "path MTU: 256, 512, 1024, 2048 or 4096")
	}
	fl.IntVarP(&f.cfg.RxDepth, "rx-depth", "r", pingpong.DefaultRxDepth, "receives posted at a time")
	fl.IntVarP(&f.cfg.Iters, "iters", "n", pingpong.DefaultIters, "number of exchanges")
	fl.Uint8VarP(&f.cfg.SL, "sl", "l", 0, "service level, 0 to 7; without effect: packets carry no VLAN tag")
	fl.BoolVarP(&f.cfg.Events, "events", "e", false, "sleep on completion events instead of polling")
	fl.Uint8VarP(&f.cfg.GIDIndex, "gid-idx", "g", 0, "index of the local address in the GID table")
	fl.BoolVarP(&f.cfg.Check, "chk", "c", false, "check the data")
	fl.DurationVar(&f.cfg.Patience, "patience", pingpong.DefaultPatience, "give up when nothing happens for so long; negative: never")
	fl.BoolVar(&f.json, "json", false, "print JSON")
	addSocketFlag(c, &f.socket)
	return c
}

// config checks the options and turns them into a configuration.
func (f *pingpongFlags) config() (pingpong.Config, error) {
	var ok bool
	cfg := f.cfg
	switch cfg.MTU, ok = bth.MTUFromBytes(f.mtu); {
	case !ok:
		return cfg, fmt.Errorf("-m %d is not a path MTU: 256, 512, 1024, 2048 or 4096", f.mtu)
	case f.ibPort != 1:
		return cfg, fmt.Errorf("-i %d: the adapter has port 1 only", f.ibPort)
	case f.size < 0:
		return cfg, fmt.Errorf("-s %d is negative", f.size)
	case cfg.Iters < 1:
		return cfg, fmt.Errorf("-n %d is less than 1", cfg.Iters)
	case cfg.RxDepth < 1:
		return cfg, fmt.Errorf("-r %d is less than 1", cfg.RxDepth)
	case cfg.Service == pingpong.SRQ && cfg.QPs < 1:
		return cfg, fmt.Errorf("-q %d is less than 1", cfg.QPs)
	case cfg.Port < 1:
		return cfg, fmt.Errorf("-p %d is not a TCP port", cfg.Port)
	}
	if cfg.Size = f.size; f.size == 0 {
		cfg.Size = -1 // zero would be the default
	}
	return cfg, cfg.Validate()
}

func runPingpong(ctx context.Context, f *pingpongFlags, out, errs io.Writer) error {
	cfg, err := f.config()
	if err != nil {
		return &exitError{exitUsage, err}
	}
	dev, err := openDevice(f.socket, f.device)
	if err != nil {
		return err
	}
	defer dev.Close()
	if !f.json {
		cfg.Local = func(e pingpong.Endpoint) { fmt.Fprintf(out, "  local address:  %v\n", e) }
		cfg.Remote = func(e pingpong.Endpoint) { fmt.Fprintf(out, "  remote address: %v\n", e) }
	}
	p := newProgress(errs)
	cfg.Progress = func(done, total int) { p.show(fmt.Sprintf("%d of %d exchanges", done, total)) }
	rep, err := pingpong.Run(ctx, dev, cfg)
	p.clear()
	if errors.Is(err, pingpong.ErrTooLong) {
		return &exitError{exitUsage, err}
	}
	if err != nil {
		return hinted(err, f.socket)
	}
	if f.json {
		err = json.NewEncoder(out).Encode(pingpongOf(rep))
	} else {
		printPingpong(out, rep)
	}
	if err == nil && len(rep.BadPages) > 0 {
		err = fmt.Errorf("pingpong: the data of %d pages is wrong", len(rep.BadPages))
	}
	return err
}

// openDevice opens the daemon's adapter; name is what it must be called, when
// it is not empty.
func openDevice(socket, name string) (*verbs.Device, error) {
	dev, err := verbs.Open(&verbs.Options{Socket: socket})
	if err != nil {
		return nil, err
	}
	if name != "" && dev.Name() != name {
		err := fmt.Errorf("the adapter at %s is %s, not %s (see -d and --socket)", verbs.SocketPath(socket), dev.Name(), name)
		_ = dev.Close() // that error is the one to report
		return nil, err
	}
	return dev, nil
}

// printPingpong prints what rdma-core's programs print at their end.
func printPingpong(w io.Writer, r *pingpong.Report) {
	s := r.Elapsed.Seconds()
	fmt.Fprintf(w, "%d bytes in %.2f seconds = %.2f Mbit/sec\n", r.Bytes(), s, r.MbitPerSec())
	fmt.Fprintf(w, "%d iters in %.2f seconds = %.2f usec/iter\n", r.Iters, s, r.UsecPerIter())
	if r.Unacknowledged > 0 {
		fmt.Fprintln(w, "the peer was through, and left before it acknowledged the last message again")
	}
	for _, n := range r.BadPages {
		fmt.Fprintf(w, "invalid data in page %d\n", n)
	}
}

// pingpongJSON is the report for machines.
type pingpongJSON struct {
	Service     string         `json:"service"`
	Local       endpointJSON   `json:"local"` // of the first queue pair
	Remote      endpointJSON   `json:"remote"`
	Others      []endpointPair `json:"others,omitempty"` // the other queue pairs
	Size        int            `json:"size"`
	MTU         int            `json:"mtu"`
	Iters       int            `json:"iters"`
	Bytes       int64          `json:"bytes"`
	Elapsed     time.Duration  `json:"elapsed_ns"`
	MbitPerSec  float64        `json:"mbit_per_sec"`
	UsecPerIter float64        `json:"usec_per_iter"`
	Checked     bool           `json:"checked"`
	BadPages    []int          `json:"bad_pages"`
	Unacked     int            `json:"unacknowledged"` // at the end, by a peer that was through and left
}

type endpointJSON struct {
	LID uint16 `json:"lid"`
	QPN uint32 `json:"qpn"`
	PSN uint32 `json:"psn"`
	GID string `json:"gid"`
}

type endpointPair struct {
	Local  endpointJSON `json:"local"`
	Remote endpointJSON `json:"remote"`
}

func pingpongOf(r *pingpong.Report) pingpongJSON {
	end := func(e pingpong.Endpoint) endpointJSON {
		return endpointJSON{e.LID, uint32(e.QPN), uint32(e.PSN), e.GID.String()}
	}
	var others []endpointPair
	for i := 1; i < len(r.Local); i++ {
		others = append(others, endpointPair{end(r.Local[i]), end(r.Remote[i])})
	}
	return pingpongJSON{
		r.Service.String(), end(r.Local[0]), end(r.Remote[0]), others, r.Size, r.MTU, r.Iters, r.Bytes(), r.Elapsed,
		r.MbitPerSec(), r.UsecPerIter(), r.Checked, append([]int{}, r.BadPages...), r.Unacknowledged,
	}
}

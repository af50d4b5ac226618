package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// A testCase is one line of the verdict.
type testCase struct {
	name, about string
	impaired    bool
	loss        string // of an impaired case; impairment when it is empty
	shows       map[string]int
	run         func(ctx context.Context, log logf) error
}

// A lab is one run: the guest, what it meets, and the count.
type lab struct {
	options
	guest  guest
	daemon *daemon // nil in a reference run

	passed, failed int
	captures       []recorded
	missed         int // packets that were not captured
}

type recorded struct {
	file    string
	packets int
}

// How much of the RoCE traffic the guest's queues lose, double and reorder in each direction, in percent.
const impairment = "3 2 3"

// A case that takes longer than this has failed; what it holds is left behind.
const caseLimit = 180 * time.Second

func (l *lab) cases() []testCase {
	var cases []testCase
	other := "softroce"
	if l.reference {
		other = "guest2"
	}
	for _, c := range pingpongCases {
		about := strings.TrimSpace("ibv_" + cmp.Or(c.service, "rc") + "_pingpong " + c.options)
		for _, guestServes := range []bool{true, false} {
			name, shows := "pingpong/"+c.name+"/guest-client", c.shows
			if guestServes {
				name = "pingpong/" + c.name + "/guest-server"
			}
			cases = append(cases, testCase{
				name: name, about: about, impaired: c.impaired, shows: shows,
				run: func(ctx context.Context, log logf) error {
					if guestServes {
						return c.run(ctx, l.guest, l.otherHost(), log)
					}
					return c.run(ctx, l.otherHost(), l.guest, log)
				},
			})
		}
	}
	cases = append(cases, l.besideCases()...)
	cases = append(cases, l.cmCases()...)
	for _, c := range slices.Concat(verbsCases, serviceCases) {
		name := c.name
		if !strings.Contains(name, "/") {
			name = "verbs/" + name
		}
		for _, requester := range []string{"guest", other} {
			if c.ours && (requester != "guest" || l.reference) {
				continue
			}
			cases = append(cases, testCase{
				name: name + "/" + requester + "-requests", about: c.about,
				impaired: c.impaired, loss: c.loss, shows: c.shows,
				run: func(_ context.Context, log logf) error { return l.verbs(c, requester == "guest", log) },
			})
		}
	}
	return cases
}

// cmCases are those of programs that connect by the connection manager.
func (l *lab) cmCases() (cases []testCase) {
	for _, c := range cmCases {
		for _, role := range []string{"guest-server", "guest-client"} {
			cases = append(cases, testCase{
				name: "cm/" + cmp.Or(c.program, "rping") + "/" + c.name + "/" + role, about: cmp.Or(c.program, "rping") + " " + c.options, shows: c.shows,
				impaired: c.loss != "", loss: c.loss,
				run: func(ctx context.Context, log logf) error {
					var other cmHost = softroceHost{l.daemon}
					if l.reference {
						other = guest{2}
					}
					if role == "guest-server" {
						return c.run(ctx, l.guest, other, log)
					}
					return c.run(ctx, other, l.guest, log)
				},
			})
		}
	}
	return cases
}

// otherHost plays ping-pong against the guest.
func (l *lab) otherHost() pingpongHost {
	if l.reference {
		return guest{2}
	}
	return softroceHost{l.daemon}
}

// otherEnd is the end that meets the guest's.
func (l *lab) otherEnd(log logf) (*side, error) {
	if l.reference {
		end, err := dialRemote(guest{2}.peer(), log)
		return &side{name: "guest2", end: end}, err
	}
	end, err := l.daemon.newEnd(log)
	return &side{name: "softroce", end: end}, err
}

// verbs plays one case over connections of its own.
func (l *lab) verbs(c verbsCase, guestRequests bool, log logf) error {
	var links []*link
	for i := range max(1, c.connections) {
		req, resp, err := l.sides(log)
		if err != nil {
			return err
		}
		if !guestRequests {
			req, resp = resp, req
		}
		defer req.end.Close()
		defer resp.end.Close()
		links = append(links, newLink(fmt.Sprint(c.name, i), c.setup, req, resp, log))
	}
	if c.runMany != nil {
		c.runMany(links)
	} else {
		c.run(links[0])
	}
	return nil
}

// sides opens an end in the guest and the one that meets it.
func (l *lab) sides(log logf) (*side, *side, error) {
	guestEnd, err := dialRemote(l.guest.peer(), log)
	if err != nil {
		return nil, nil, err
	}
	other, err := l.otherEnd(log)
	if err != nil {
		guestEnd.Close()
		return nil, nil, err
	}
	return &side{name: l.guest.name(), end: guestEnd}, other, nil
}

// play runs the cases one after the other; the exit status.
func (l *lab) play(ctx context.Context, cases []testCase) int {
	if !l.reference {
		l.daemon = &daemon{program: l.softroce, socket: filepath.Join(l.state, "softroce.sock"), logs: l.logs, tun: l.tun, packet: l.packet}
		if err := l.daemon.start(ctx); err != nil {
			l.verdict("daemon/start", 0, err, l.daemon.logFile())
			return l.close(ctx)
		}
	}
	if l.tun != "" {
		if err := l.guest.must(ctx, "ip route replace 10.77.1.0/24 via 10.77.0.1; ip route replace fd77:1::/64 via fd77::1"); err != nil {
			l.verdict("guest/routes", 0, err, l.logs)
			return l.close(ctx)
		}
	}
	for _, c := range cases {
		if ctx.Err() != nil {
			fmt.Println("interrupted")
			break
		}
		if l.tun != "" && strings.Contains(c.name, "/mcast") {
			fmt.Printf("skip  %s: a host routes no multicast to a TUN link\n", c.name)
			continue
		}
		l.one(ctx, c)
	}
	if l.daemon != nil {
		begin := time.Now()
		l.verdict("daemon/books", time.Since(begin), l.daemon.books(ctx), l.daemon.metricsFile())
		begin = time.Now()
		l.verdict("daemon/stop", time.Since(begin), l.daemon.stop(), l.daemon.logFile())
	}
	return l.close(ctx)
}

// close judges the captures by tshark, prints the closing line and returns the exit status.
func (l *lab) close(ctx context.Context) int {
	if len(l.captures) > 0 && ctx.Err() == nil {
		l.tshark(ctx)
	}
	if l.missed > 0 {
		fmt.Printf("note: %d packets were too fast for the capture and are not among those checked\n", l.missed)
	}
	fmt.Printf("%d passed, %d failed\n", l.passed, l.failed)
	if l.failed > 0 || ctx.Err() != nil {
		return 1
	}
	return 0
}

func (l *lab) verdict(name string, took time.Duration, err error, log string) {
	if err == nil {
		l.passed++
		fmt.Printf("ok    %s (%.1f s)\n", name, took.Seconds())
		return
	}
	l.failed++
	fmt.Printf("FAIL  %s: %s (%s)\n", name, strings.ReplaceAll(err.Error(), "\n", "; "), log)
}

// one plays a case with its capture, judges both, and keeps the files of a failed one.
func (l *lab) one(ctx context.Context, c testCase) {
	base := filepath.Join(l.logs, strings.ReplaceAll(c.name, "/", "-"))
	l.try(ctx, c, base, true)
}

// try plays a case. One that the guest's kernel froze is played once more, aloud, and its files are kept.
func (l *lab) try(ctx context.Context, c testCase, base string, again bool) {
	begin := time.Now()
	file, err := os.Create(base + ".log")
	if err != nil {
		l.verdict(c.name, 0, err, base+".log")
		return
	}
	log := newLog(file)
	err = l.recorded(ctx, c, base+".pcap", log)
	if err != nil {
		log("FAIL: %v", err)
		if out, _, e := l.guest.exec(ctx, callLimit, "dmesg | tail -n 20; rdma res show qp; rdma statistic show"); e == nil {
			log("--- guest\n%s", out)
		}
	}
	_ = file.Close()
	if err != nil && again && !l.reference && l.frozen(base+".log", base+".pcap") {
		fmt.Printf("again %s: the guest's kernel stopped at its turn, all acknowledged (%s.log)\n", c.name, base)
		l.try(ctx, c, base+"-again", false)
		return
	}
	l.verdict(c.name, time.Since(begin), err, base+".log")
	if err == nil && !l.keep {
		_ = os.Remove(base + ".log")
	}
}

// newLog returns a log that starts each line with the seconds since now.
func newLog(file *os.File) logf {
	begin := time.Now()
	return func(format string, args ...any) {
		// After the case's limit the file may be closed; what a stuck case says then is lost.
		_, _ = fmt.Fprintf(file, "%8.3f "+format+"\n", append([]any{time.Since(begin).Seconds()}, args...)...)
	}
}

// recorded plays the case between the start and the end of a capture and checks what was captured.
func (l *lab) recorded(ctx context.Context, c testCase, pcap string, log logf) error {
	if c.impaired {
		if err := l.guest.must(ctx, "impair on "+cmp.Or(c.loss, impairment)); err != nil {
			return err
		}
		defer func() {
			out, _, err := l.guest.exec(ctx, callLimit, "impair show; impair off")
			log("--- impairment: %v\n%s", err, out)
		}()
	}
	tap, err := startCapture(ctx, pcap)
	if err != nil {
		return err
	}
	err = limited(ctx, c.run, log)
	missed, e := tap.stop()
	if e != nil {
		return errors.Join(err, e)
	}
	l.missed += missed
	return errors.Join(err, l.check(ctx, c, pcap, missed, err == nil, log))
}

// limited runs the case in a goroutine, with the time limit, and turns a panic of the case into its error.
func limited(ctx context.Context, run func(context.Context, logf) error, log logf) error {
	ctx, cancel := context.WithTimeout(ctx, caseLimit)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		defer func() {
			switch r := recover().(type) {
			case nil:
			case failure:
				done <- errors.New(r.text)
			default:
				log("%s", debug.Stack())
				done <- fmt.Errorf("panic: %v", r)
			}
		}()
		done <- run(ctx, log)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("not done after %v", caseLimit)
	}
}

// check judges a capture: something is in it, `softroce decode` finds every packet whole and its ICRC right, and it shows
// what the case is about (asked of a case that passed, and only when nothing was missed).
func (l *lab) check(ctx context.Context, c testCase, pcap string, missed int, passed bool, log logf) error {
	w, err := readWire(pcap)
	if err != nil {
		return err
	}
	log("captured %d packets, missed %d", w.packets, missed)
	if w.packets == 0 {
		if !passed {
			return nil // it did not come that far
		}
		return errors.New("no RoCE packet was seen on the wire")
	}
	l.captures = append(l.captures, recorded{pcap, w.packets})
	if l.softroce != "" {
		out, err := child(ctx, l.softroce, "decode", pcap).CombinedOutput()
		if err != nil {
			text := filepath.Join(l.logs, filepath.Base(pcap)+".decode")
			_ = os.WriteFile(text, out, 0o644)
			return fmt.Errorf("softroce decode: %w: %s (all of it in %s)", err, lastLine(string(out)), text)
		}
		if n := strings.Count(string(out), "\n"); n < w.packets {
			return fmt.Errorf("softroce decode printed %d lines for %d packets", n, w.packets)
		}
	}
	if passed && missed == 0 {
		if text := w.lacks(c.shows); text != "" {
			return errors.New(text)
		}
		if c.impaired && c.loss == "" && w.count["again"] == 0 {
			return errors.New("no packet was sent again: the guest's loss does not work")
		}
	}
	return nil
}

// tshark reads all captures, merged; when something is wrong, one by one to name it.
func (l *lab) tshark(ctx context.Context) {
	begin := time.Now()
	merged := filepath.Join(l.logs, "all.pcap")
	args, packets := []string{"-F", "pcap", "-a", "-w", merged}, 0
	for _, r := range l.captures {
		args = append(args, r.file)
		packets += r.packets
	}
	err := child(ctx, "mergecap", args...).Run()
	if err == nil {
		err = tsharkCheck(ctx, merged, packets)
	}
	if err != nil {
		for _, r := range l.captures {
			if one := tsharkCheck(ctx, r.file, r.packets); one != nil {
				err = one
				break
			}
		}
	}
	l.verdict(fmt.Sprintf("captures/tshark (%d packets)", packets), time.Since(begin), err, l.logs)
	_ = os.Remove(merged)
	if err == nil && l.failed == 0 && !l.keep {
		for _, r := range l.captures {
			_ = os.Remove(r.file)
		}
	}
}

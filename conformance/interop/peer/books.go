package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// metricsAddress is on the namespace's loopback.
const metricsAddress = "127.0.0.1:9479"

// settled are the samples that must be 0 once every case is over: nothing of a program is left, no packet of a right peer was
// refused as broken, and nothing went wrong inside. (Packets dropped for their queue pair's state or age are normal.)
var settled = regexp.MustCompile(`^softroce_(resource_used|qps|memory_faults_total|bad_slots_total|cq_overflows_total|` +
	`cq_completions_lost_total|cq_events_lost_total|program_faults_total|control_bad_messages_total|` +
	`drops_total\{.*reason="(icrc|malformed|opcode|pad|short|truncated|version)".*)\b`)

func (d *daemon) metricsFile() string { return filepath.Join(d.logs, "metrics.txt") }

// books reads the daemon's metrics until all that must be 0 is, for at most ten seconds: a program's things go shortly after
// the program.
func (d *daemon) books(ctx context.Context) error {
	var text string
	var err error
	for range 100 {
		if text, err = scrape(ctx); err != nil {
			return err
		}
		if err = balance(text); err == nil {
			break
		}
		if !pause(ctx, 100*time.Millisecond) {
			break
		}
	}
	if e := os.WriteFile(d.metricsFile(), []byte(text), 0o644); e != nil {
		return e
	}
	return err
}

func scrape(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+metricsAddress+"/metrics", nil)
	if err != nil {
		return "", err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	return string(b), err
}

// balance judges a page of metrics.
func balance(text string) error {
	zeros, received := 0, 0.0
	for line := range strings.Lines(text) {
		at := strings.LastIndexByte(line, ' ')
		if at < 0 || strings.HasPrefix(line, "#") {
			continue
		}
		name := line[:at]
		value, err := strconv.ParseFloat(strings.TrimSpace(line[at:]), 64)
		if err != nil {
			return fmt.Errorf("metrics: %w", err)
		}
		if strings.HasPrefix(name, "softroce_rcvd_pkts_total") {
			received += value
		}
		if settled.MatchString(name) {
			if zeros++; value != 0 {
				return fmt.Errorf("after the last case %s is %v, want 0", name, value)
			}
		}
	}
	if zeros == 0 || received == 0 {
		return fmt.Errorf("metrics: %d of the samples that must be 0 are there, and %v packets were counted", zeros, received)
	}
	return nil
}

package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
)

// The kernel's driver can freeze a queue pair of its own: when its retransmission timer fires in the middle of an exchange
// (an emulated guest that was held up for a moment is enough) and the acknowledgement of all it is just sending again
// arrives meanwhile, it sends nothing any more, with nothing outstanding on either side. A ping-pong then stands still at
// the guest's turn. That is told from a fault of ours by the capture: each message of the guest's was acknowledged and
// counted by softroce's program, and each of ours was acknowledged by the guest.

// silence is what softroce's program says when its peer stopped.
var silence = regexp.MustCompile(`nothing came for \S+ after (\d+) of \d+ exchanges`)

// frozen says whether a failed ping-pong stood still at the guest's turn, with all of both sides acknowledged.
func (l *lab) frozen(logFile, pcap string) bool {
	text, err := os.ReadFile(logFile)
	if err != nil {
		return false
	}
	m := silence.FindSubmatch(text)
	if m == nil {
		return false
	}
	exchanges, err := strconv.Atoi(string(m[1]))
	if err != nil {
		return false
	}
	decode := exec.Command(l.softroce, "decode", pcap)
	out, err := decode.StdoutPipe()
	if err != nil || decode.Start() != nil {
		return false
	}
	verdict := guestsTurn(out, exchanges)
	return decode.Wait() == nil && verdict
}

// decodedLine is what is needed of a line of softroce decode.
var decodedLine = regexp.MustCompile(` (\S+):\d+ > \S+ RC (SEND Last|SEND Only|Acknowledge)\b.* psn=(0x[0-9a-f]+)`)

// guestsTurn reads decoded packets: the guest sent that many messages, and the last message of each side was acknowledged.
func guestsTurn(decoded io.Reader, messages int) bool {
	type end struct {
		sent, acked map[string]bool
		last        string
	}
	guest := end{sent: map[string]bool{}, acked: map[string]bool{}}
	ours := end{sent: map[string]bool{}, acked: map[string]bool{}}
	lines := bufio.NewScanner(decoded)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		m := decodedLine.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		from, to := &ours, &guest
		if host := strings.Trim(m[1], "[]"); host == "10.77.0.11" || host == "fd77::11" {
			from, to = &guest, &ours
		}
		if m[2] == "Acknowledge" {
			to.acked[m[3]] = true
			continue
		}
		if !from.sent[m[3]] {
			from.sent[m[3]], from.last = true, m[3]
		}
	}
	return lines.Err() == nil && len(guest.sent) == messages && guest.acked[guest.last] && ours.acked[ours.last]
}

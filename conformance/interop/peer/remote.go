package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"
)

// remoteEnd is an End in a guest: guest/peer.py does what it is told, one JSON object a line each way.
type remoteEnd struct {
	conn net.Conn
	rx   *bufio.Reader
	log  logf
}

// logf writes one line of a case's log.
type logf func(format string, args ...any)

// callLimit bounds a call beside the time that it waits in the guest (an emulated one, on a busy machine).
const callLimit = 30 * time.Second

func dialRemote(address string, log logf) (*remoteEnd, error) {
	conn, err := net.DialTimeout("tcp", address, callLimit)
	if err != nil {
		return nil, err
	}
	return &remoteEnd{conn: conn, rx: bufio.NewReaderSize(conn, 1<<16), log: log}, nil
}

// call sends the request, a struct, with what to do as its first field, and decodes the answer unless that is nil.
func (r *remoteEnd) call(what string, request, answer any, wait time.Duration) error {
	fields, err := json.Marshal(request)
	if err != nil {
		return err
	}
	line := fmt.Appendf(nil, `{"do":%q`, what)
	if len(fields) > len("{}") {
		line = append(line, ',')
	}
	line = append(line, fields[1:]...)
	r.log("> %s", short(line))
	if err := r.conn.SetDeadline(time.Now().Add(callLimit + wait)); err != nil {
		return err
	}
	if _, err := r.conn.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("%s in the guest: %w", what, err)
	}
	if line, err = r.rx.ReadBytes('\n'); err != nil {
		return fmt.Errorf("%s in the guest: %w", what, err)
	}
	r.log("< %s", short(line))
	var fault struct{ Error string }
	if err := json.Unmarshal(line, &fault); err != nil {
		return fmt.Errorf("%s in the guest: %w", what, err)
	}
	if fault.Error != "" {
		return fmt.Errorf("%s in the guest: %w", what, errors.New(fault.Error))
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(line, answer)
}

// rxe's GIDs in the guest: 0 is link-local, 1 the IPv4 address, 2 the IPv6 address.
func (r *remoteEnd) Open(o openRequest) (id identity, err error) {
	o.GID = 1
	if o.IPv6 {
		o.GID = 2
	}
	err = r.call("open", o, &id, 0)
	return id, err
}

func (r *remoteEnd) Connect(c connectRequest) error { return r.call("connect", c, nil, 0) }

func (r *remoteEnd) PostRecv(wrs []recvWR) error {
	return r.call("recv", struct {
		WRs []recvWR `json:"wrs"`
	}{wrs}, nil, 0)
}

func (r *remoteEnd) PostSend(wrs []sendWR) error {
	return r.call("send", struct {
		WRs []sendWR `json:"wrs"`
	}{wrs}, nil, 0)
}

func (r *remoteEnd) Poll(count, ms int) ([]completion, error) {
	var answer struct{ WCs []completion }
	err := r.call("poll", struct {
		Count int `json:"count"`
		MS    int `json:"ms"`
	}{count, ms}, &answer, time.Duration(ms)*time.Millisecond)
	return answer.WCs, err
}

func (r *remoteEnd) WriteMem(off int, b []byte) error {
	return r.call("write", struct {
		Off  int    `json:"off"`
		Data []byte `json:"data"`
	}{off, b}, nil, 0)
}

func (r *remoteEnd) ReadMem(off, n int) ([]byte, error) {
	var answer struct{ Data []byte }
	err := r.call("read", struct {
		Off int `json:"off"`
		Len int `json:"len"`
	}{off, n}, &answer, 0)
	return answer.Data, err
}

func (r *remoteEnd) State() (int, error) {
	var answer struct{ State int }
	err := r.call("state", struct{}{}, &answer, 0)
	return answer.State, err
}

func (r *remoteEnd) Break() error { return r.call("break", struct{}{}, nil, 0) }

func (r *remoteEnd) Handle(gid string) (int, error) {
	var answer struct{ AH int }
	err := r.call("ah", struct {
		GID string `json:"gid"`
	}{gid}, &answer, 0)
	return answer.AH, err
}

func (r *remoteEnd) Answer(id uint64, off int) (int, error) {
	var answer struct{ AH int }
	err := r.call("answer", struct {
		ID  uint64 `json:"id"`
		Off int    `json:"off"`
	}{id, off}, &answer, 0)
	return answer.AH, err
}

func (r *remoteEnd) Group(gid string, join bool) error {
	return r.call("group", struct {
		GID  string `json:"gid"`
		Join bool   `json:"join"`
	}{gid, join}, nil, 0)
}

func (r *remoteEnd) Window(typ int) (int, uint32, error) {
	var answer struct {
		MW   int
		RKey uint32
	}
	err := r.call("window", struct {
		Type int `json:"type"`
	}{typ}, &answer, 0)
	return answer.MW, answer.RKey, err
}

// key calls for something whose answer is a key.
func (r *remoteEnd) key(what string, request any) (uint32, error) {
	var answer struct{ RKey uint32 }
	err := r.call(what, request, &answer, 0)
	return answer.RKey, err
}

func (r *remoteEnd) Bind(b bindWR) (uint32, error) { return r.key("bind", b) }

func (r *remoteEnd) Rereg(access int) (uint32, error) {
	return r.key("rereg", struct {
		Access int `json:"access"`
	}{access})
}

func (r *remoteEnd) Limit(limit int) error {
	return r.call("limit", struct {
		Limit int `json:"limit"`
	}{limit}, nil, 0)
}

func (r *remoteEnd) Event(ms int) (int, error) {
	var answer struct{ Event int }
	err := r.call("event", struct {
		MS int `json:"ms"`
	}{ms}, &answer, time.Duration(ms)*time.Millisecond)
	return answer.Event, err
}

func (r *remoteEnd) Close() { _ = r.conn.Close() }

// short cuts what a log line need not show: the bytes of memory.
func short(line []byte) string {
	const most = 600
	if len(line) <= most {
		return string(line)
	}
	return fmt.Sprintf("%s… (%d bytes)", line[:most], len(line))
}

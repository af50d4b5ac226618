package verbsagent

import (
	"context"
	"errors"
	"maps"

	"golang.org/x/sys/unix"

	"github.com/softroce/softroce/conformance/agent"
)

// destroy ends the one object that is named.
func (s *Session) destroy(_ context.Context, r *agent.Request) (*agent.Answer, error) {
	named := 0
	for _, h := range []int{r.MR, r.MW, r.CQ, r.SRQ, r.QP, r.AH, r.PD} {
		if h != 0 {
			named++
		}
	}
	switch {
	case named != 1:
		return nil, errors.New("name one object")
	case r.MR != 0:
		return nil, s.dropMR(r.MR)
	case r.MW != 0:
		return nil, drop(s.mws, "mw", r.MW)
	case r.CQ != 0:
		return nil, drop(s.cqs, "cq", r.CQ)
	case r.SRQ != 0:
		return nil, drop(s.srqs, "srq", r.SRQ)
	case r.QP != 0:
		return nil, drop(s.qps, "qp", r.QP)
	case r.AH != 0:
		return nil, drop(s.ahs, "ah", r.AH)
	}
	return nil, drop(s.pds, "pd", r.PD)
}

// drop ends an object, which keeps its handle if it stays.
func drop[T any](objects map[int]T, kind string, handle int) error {
	o, err := find(objects, kind, handle)
	if err != nil {
		return err
	}
	switch o := any(o).(type) {
	case interface{ Destroy() error }:
		err = o.Destroy()
	case interface{ Dealloc() error }:
		err = o.Dealloc()
	case interface{ Dereg() error }:
		err = o.Dereg()
	}
	if err == nil {
		delete(objects, handle)
	}
	return err
}

func (s *Session) dropMR(handle int) error {
	n := 0
	if mr := s.mrs[handle]; mr != nil {
		n = mr.Len()
	}
	err := drop(s.mrs, "mr", handle)
	if err == nil {
		s.memory -= n
	}
	return err
}

// Destroy ends the queue and its channel.
func (q *queue) Destroy() error {
	if err := q.CQ.Destroy(); err != nil || q.events == nil {
		return err
	}
	return q.events.Destroy()
}

// reset destroys every object. Windows go before what they are bound to, and all before what they are made of.
func (s *Session) reset(context.Context, *agent.Request) (*agent.Answer, error) {
	var errs []error
	for _, q := range s.qps {
		for gid := range maps.Clone(q.groups) {
			errs = append(errs, q.DetachMcast(gid, 0))
			delete(q.groups, gid)
		}
	}
	errs = append(errs, dropAll(s.mws, "mw"), dropAll(s.qps, "qp"), dropAll(s.ahs, "ah"), dropAll(s.srqs, "srq"),
		dropAll(s.cqs, "cq"))
	for h := range maps.Clone(s.mrs) {
		errs = append(errs, s.dropMR(h))
	}
	errs = append(errs, dropAll(s.pds, "pd"))
	err := errors.Join(errs...)
	if err == nil || errors.Is(err, unix.EIO) { // the adapter is gone, and the objects with it
		s.clear()
	}
	return nil, err
}

func dropAll[T any](objects map[int]T, kind string) error {
	var errs []error
	for h := range maps.Clone(objects) {
		errs = append(errs, drop(objects, kind, h))
	}
	return errors.Join(errs...)
}

// Close destroys every object.
func (s *Session) Close() error {
	_, err := s.reset(context.Background(), nil)
	if s.own {
		err = errors.Join(err, s.dev.Close())
	}
	return err
}

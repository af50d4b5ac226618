package main

import "errors"

func (d *daemon) newEnd(logf) (End, error)    { return nil, errors.New("not yet") }
func (d *daemon) gid(ipv6 bool) (int, error) { return 0, errors.New("not yet") }

package soak

import "time"

// planTrouble spreads restarts and partitions over the world's life: each begins
// when so many requests are left to be posted.
func (w *world) planTrouble() {
	for range w.plan.restarts {
		w.trouble(w.restart)
	}
	for range w.plan.partitions {
		w.trouble(w.partition)
	}
}

// trouble has something done when some part of the requests was posted.
func (w *world) trouble(do func()) {
	left := w.rand.IntN(w.plan.requests)
	var look func()
	look = func() {
		if w.toPost > left {
			w.after(100*time.Microsecond, look)
			return
		}
		do()
	}
	w.after(100*time.Microsecond, look)
}

// restart takes an adapter down, and up again.
func (w *world) restart() {
	a := w.adapters[w.rand.IntN(len(w.adapters))]
	if !a.up {
		return
	}
	w.log.note(Restart, "%v", a)
	for _, c := range w.conns {
		for _, e := range c.ends {
			if e.a == a && (c.phase == up || c.phase == dying) {
				e.gone = true
			}
		}
	}
	a.restart()
	for _, c := range w.conns {
		for _, e := range c.ends {
			switch {
			case e.a != a:
			case c.phase == up || c.phase == dying:
				e.vanish()
			default: // a queue pair that waited in RESET
				e.q = nil
			}
		}
	}
	for _, p := range w.ports {
		if p.a == a && p.q != nil {
			p.vanish()
		}
	}
	w.after(w.upTo(5*time.Millisecond), func() {
		w.log.note(Restart, "%v is up again", a)
		w.result.Faults[Restart]--
		a.boot()
		for _, p := range w.ports {
			if p.a == a && w.toPost > 0 {
				p.begin()
			}
		}
	})
}

// partition cuts two adapters off from each other for a while.
func (w *world) partition() {
	i, j := w.rand.IntN(len(w.adapters)), w.rand.IntN(len(w.adapters))
	if i == j {
		return
	}
	d := w.upTo(2 * time.Millisecond)
	if w.rand.IntN(2) == 0 {
		d = w.upTo(2 * time.Second) // long enough to be given up
	}
	w.log.note(Partition, "adapters %d and %d for %v", i, j, d)
	w.net.Partition(i, j)
	until := w.now().Add(d)
	for _, c := range w.conns {
		a, b := c.ends[0].a.index, c.ends[1].a.index
		if (a == i && b == j || a == j && b == i) && until.After(c.cut) {
			c.cut = until
		}
	}
	w.after(d, func() {
		w.log.note(Partition, "adapters %d and %d hear each other again", i, j)
		w.result.Faults[Partition]--
		w.net.Heal(i, j)
	})
}

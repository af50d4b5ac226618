package verbs

import (
	"testing"
	"testing/synctest"
	"time"
)

// A nap adds little to what was waited already, however long that was, and is
// bounded.
func TestNaps(t *testing.T) {
	for _, waited := range []time.Duration{-time.Second, 0, yieldFor - 1} {
		if nap := napAfter(waited); nap != 0 {
			t.Errorf("after %v: a nap of %v, want a yield", waited, nap)
		}
	}
	var last time.Duration
	for waited := yieldFor; waited < time.Minute; waited += max(last, yieldFor) {
		nap := napAfter(waited)
		if nap <= 0 || nap < last || nap > waited/4 || nap > lastNap {
			t.Fatalf("after %v a nap of %v, after the last of %v; want no shorter, and at most a quarter and %v", waited, nap, last, lastNap)
		}
		last = nap
	}
	if last != lastNap {
		t.Errorf("the naps end at %v, want %v", last, lastNap)
	}
}

// A wait begins with the first vain poll and ends with a post or a completion.
func TestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := waiting{clock: time.Now()}
		want := func(d time.Duration) {
			t.Helper()
			if got := w.goesOn(); got != d {
				t.Errorf("waited for %v, want %v", got, d)
			}
		}
		w.ends()
		want(0)
		time.Sleep(time.Millisecond)
		want(time.Millisecond - 1) // the clock's first nanosecond stands for none
		time.Sleep(time.Second)
		want(time.Second + time.Millisecond - 1)
		w.ends()
		time.Sleep(time.Second)
		want(0)
		time.Sleep(time.Millisecond)
		want(time.Millisecond)
	})
}

// While one goroutine naps, others sleep without a thread, so that a program
// with many pollers gets on.
func TestOneNapsAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w waiting
		wake := make(chan struct{})
		go w.rest(time.Millisecond, func(time.Duration) { <-wake })
		synctest.Wait()
		before := time.Now()
		w.rest(time.Millisecond, func(time.Duration) { t.Error("a second one naps") })
		if slept := time.Since(before); slept != time.Millisecond {
			t.Errorf("the second one slept for %v, want a millisecond", slept)
		}
		close(wake)
		synctest.Wait()
		napped := false
		w.rest(time.Millisecond, func(time.Duration) { napped = true })
		if !napped {
			t.Error("nobody naps after the first one has")
		}
	})
}

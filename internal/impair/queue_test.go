package impair

import (
	"testing"
	"time"
)

// drain takes out what is due.
func drain(q *Queue[string], at time.Duration) (out string) {
	for {
		v, ok := q.Pop(epoch.Add(at))
		if !ok {
			return out
		}
		out += v
	}
}

func TestQueueTimes(t *testing.T) {
	q := Queue[string]{Limit: 4}
	for i, v := range []string{"c", "a", "b", "d"} {
		due := []time.Duration{3, 1, 1, 3}[i]
		if !q.Push(epoch.Add(due), 0, 0, v) {
			t.Fatalf("no room for %s", v)
		}
	}
	if q.Push(epoch, 0, 0, "e") || q.Len() != 4 {
		t.Errorf("a fifth was taken, %d wait", q.Len())
	}
	if next, ok := q.Next(); !ok || next != epoch.Add(1) {
		t.Errorf("next %v, %v", next, ok)
	}
	for i, want := range []string{"", "ab", "", "cd"} {
		if got := drain(&q, time.Duration(i)); got != want {
			t.Errorf("at %d: %q, want %q", i, got, want)
		}
	}
	if _, ok := q.Next(); ok {
		t.Error("an empty queue has a next")
	}
}

func TestQueueBehind(t *testing.T) {
	q := Queue[string]{Limit: 9}
	q.Push(epoch, 1, 2, "a")
	q.Push(epoch, 1, 1, "b")
	q.Push(epoch, 2, 1, "x") // of another stream
	if got := drain(&q, 0); got != "" {
		t.Errorf("%q went before others", got)
	}
	q.Passed(epoch, 1)
	if got := drain(&q, 0); got != "b" {
		t.Errorf("after one: %q, want b", got)
	}
	q.Passed(epoch, 1)
	if got := drain(&q, 0); got != "a" {
		t.Errorf("after two: %q, want a", got)
	}
	if got := drain(&q, HoldFor-1); got != "" {
		t.Errorf("%q went early", got)
	}
	if got := drain(&q, HoldFor); got != "x" || q.behind != 0 {
		t.Errorf("in the end %q, want x; %d behind", got, q.behind)
	}
}

func TestQueueRemove(t *testing.T) {
	q := Queue[string]{Limit: 9}
	for _, v := range []string{"a", "b", "c"} {
		q.Push(epoch, 1, len(v)%2, v)
	}
	q.Remove(func(v string) bool { return v == "b" })
	if got := drain(&q, HoldFor); got != "ac" || q.behind != 0 {
		t.Errorf("left %q, %d behind", got, q.behind)
	}
}

package scenario

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/softroce/softroce/pkg/mrtable"
	"github.com/softroce/softroce/pkg/wq"
)

// pageLen is the size of a page where no word says otherwise.
const pageLen = 4096

// keyed is a memory window or a region for fast registration, by name.
type keyed struct {
	window *mrtable.Window
	region *mrtable.Region
}

func (k *keyed) rkey() mrtable.RKey {
	if k.window != nil {
		return k.window.RKey()
	}
	return k.region.RKey()
}

// key is the key of a name: good is the region's; that of a window or a fast
// region is its present one, with + behind it the next and with - the one
// before.
func (s *script) key(name string) (uint32, bool) {
	if name == "good" {
		return uint32(s.mr.RKey()), true
	}
	base := strings.TrimRight(name, "+-")
	k := s.keyed[base]
	if k == nil {
		return 0, false
	}
	v := uint32(k.rkey())
	low := byte(v)
	for _, c := range name[len(base):] {
		if c == '+' {
			low++
		} else {
			low--
		}
	}
	return v&^0xFF | uint32(low), true
}

// keep gives a window or a fast region its name.
func (s *script) keep(name string, k *keyed, err error) error {
	if err != nil {
		return err
	}
	if s.keyed == nil {
		s.keyed = make(map[string]*keyed)
	}
	s.keyed[name] = k
	return nil
}

// allocWindow makes a memory window that is not bound.
func (s *script) allocWindow(fields []string) error {
	if len(fields) == 0 {
		return fmt.Errorf("no name")
	}
	w := parseWords(fields[1:])
	typ, pd := mrtable.WindowType(w.num("type", 2)), mrtable.PD(w.num("pd", 1))
	if err := w.done(); err != nil {
		return err
	}
	win, err := s.keys.AllocWindow(pd, typ, 0)
	return s.keep(fields[0], &keyed{window: win}, err)
}

// allocFast makes a region for fast registration.
func (s *script) allocFast(fields []string) error {
	if len(fields) == 0 {
		return fmt.Errorf("no name")
	}
	w := parseWords(fields[1:])
	pages, pd := uint32(w.num("pages", maxSGE)), mrtable.PD(w.num("pd", 1))
	if err := w.done(); err != nil {
		return err
	}
	r, err := s.keys.AllocRegion(pd, pages, 0)
	return s.keep(fields[0], &keyed{region: r}, err)
}

// dereg ends the life of the region, or of the window or fast region with this
// name.
func (s *script) dereg(fields []string) error {
	var err error
	switch {
	case len(fields) == 0:
		err = s.keys.Mark(s.mr)
	case s.keyed[fields[0]] == nil:
		return fmt.Errorf("no key %q", fields[0])
	case s.keyed[fields[0]].window != nil:
		err = s.keys.MarkWindow(s.keyed[fields[0]].window)
	default:
		err = s.keys.Mark(s.keyed[fields[0]].region)
	}
	if err != nil {
		s.say(s.e, "%v", err)
	}
	return nil
}

// bindings are the operations whose words are of their own, for what they bind;
// the value says that they have a list of pages.
var bindings = map[wq.Opcode]bool{wq.BindMW: false, wq.RegMR: true, wq.LocalInv: false}

// bind reads the words of a bind or a fast registration, and puts pages in the
// place of the elements.
func (s *script) bind(wr *wq.SendWR, w *words) {
	pages, is := bindings[wr.Opcode]
	if !is {
		return
	}
	wr.SGList = nil
	if wr.Opcode == wq.LocalInv {
		return
	}
	p := Peer{Key: s.key}
	wr.Bind = wq.Bind{
		RKey: wr.RKey, Addr: wr.RemoteAddr, Length: w.num("size", 0), MR: mrtable.LKey(p.key(w, "mr", "good")),
		Access: mrtable.Access(w.num("rights", uint64(mrtable.AccessRemoteWrite|mrtable.AccessRemoteRead|mrtable.AccessLocalWrite))),
	}
	wr.RKey, wr.RemoteAddr = 0, 0
	if !pages {
		return
	}
	size := w.num("page", pageLen)
	for _, n := range strings.Split(w.text("pages", "0"), ",") {
		i, err := strconv.ParseUint(n, 0, 32)
		if err != nil {
			w.fail(fmt.Errorf("pages: %w", err))
		}
		wr.SGList = append(wr.SGList, wq.SGE{Addr: memBase + i*pageLen, Length: uint32(size), LKey: wr.Bind.MR})
	}
	wr.Bind.MR = 0
}

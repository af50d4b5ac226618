package cm

import (
	"errors"
	"time"

	"github.com/softroce/softroce/pkg/qpstate"
)

var errToCome = errors.New("to come")

// Machine is the connection manager of an adapter.
type Machine struct {
	cfg       Config
	timers    timers
	sends     sends
	listeners listeners
}

type timers struct{}

func (timers) next() time.Time { return time.Time{} }

type sends struct{}

func (sends) poll() (Path, []byte, bool) { return Path{}, nil, false }

type listeners struct{}

func (listeners) add(ListenArgs) (ListenerID, error) { return 0, errToCome }

func newMachine(c Config) *Machine { return &Machine{cfg: c} }

func (m *Machine) handleMAD(time.Time, Path, []byte) Verdict            { return DropUnknown }
func (m *Machine) handleTimeout(time.Time)                              {}
func (m *Machine) pollEvent() (Event, bool)                             { return Event{}, false }
func (m *Machine) unlisten(time.Time, ListenerID) error                 { return errToCome }
func (m *Machine) taken(CommID) error                                   { return errToCome }
func (m *Machine) connect(time.Time, ConnectArgs) (CommID, error)       { return 0, errToCome }
func (m *Machine) accept(time.Time, CommID, Param, []byte) error        { return errToCome }
func (m *Machine) reject(time.Time, CommID, RejectReason, []byte) error { return errToCome }
func (m *Machine) establish(time.Time, CommID, []byte) error            { return errToCome }
func (m *Machine) commEstablished(time.Time, CommID) error              { return errToCome }
func (m *Machine) disconnect(time.Time, CommID, []byte) error           { return errToCome }
func (m *Machine) destroy(time.Time, CommID) error                      { return errToCome }
func (m *Machine) info(CommID) (Info, bool)                             { return Info{}, false }
func (m *Machine) count() Counters                                      { return Counters{} }
func (m *Machine) qpAttr(CommID, qpstate.State, Param) (qpstate.Attr, qpstate.Mask, error) {
	return qpstate.Attr{}, 0, errToCome
}

package nic

import (
	"syscall"

	"github.com/softroce/softroce/internal/shm/foreign"
	"github.com/softroce/softroce/pkg/qpstate"
)

// privilegedQKey is the bit of a Q_Key that is for privileged consumers (IBTA
// Vol 1 §10.2.5): whoever may set it may speak as a service of the host.
const privilegedQKey = 1 << 31

// capNetRaw is CAP_NET_RAW (capabilities(7)), by which the kernel decides who may
// use such Q_Keys.
const capNetRaw = 1 << 13

// checkQKey refuses a privileged Q_Key to a program that is not root's and has no
// CAP_NET_RAW.
func (p *program) checkQKey(a *qpstate.Attr, m qpstate.Mask) error {
	if m&qpstate.MaskQKey == 0 || a.QKey&privilegedQKey == 0 || p.uid == 0 {
		return nil
	}
	caps, err := foreign.Capabilities(p.cred)
	if err == nil && caps&capNetRaw != 0 {
		return nil
	}
	return refuse(syscall.EPERM, "qkey %#x: bit 31 is for root and for programs with CAP_NET_RAW", uint32(a.QKey))
}

package verbs

import (
	"github.com/softroce/softroce/internal/uapi"
)

// PD is a protection domain (ibv_pd): regions and queue pairs of different
// domains do not meet.
type PD struct {
	dev    *Device
	handle uint32
}

// AllocPD makes a protection domain (ibv_alloc_pd). ENOMEM: the adapter's or
// the program's limit is reached.
func (d *Device) AllocPD() (*PD, error) {
	var rep uapi.HandleReply
	if err := d.ctl.do("allocate PD", uapi.OpAllocPD, &uapi.AllocPDRequest{}, &rep); err != nil {
		return nil, err
	}
	return &PD{dev: d, handle: rep.Handle}, nil
}

// Dealloc ends the domain (ibv_dealloc_pd). EBUSY: something still uses it.
func (p *PD) Dealloc() error {
	return p.dev.ctl.do("deallocate PD", uapi.OpDeallocPD, &uapi.HandleRequest{Handle: p.handle}, nil)
}

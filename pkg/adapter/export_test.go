package adapter

import "github.com/softroce/softroce/internal/nic"

// NIC is what runs inside, for its counters.
func (a *Adapter) NIC() *nic.Adapter { return a.nic }

package verbs

import "github.com/softroce/softroce/internal/uapi"

// Resource is one object of the adapter's, as `rdma resource show` lists them.
type Resource = uapi.Resource

// ResourceKind is a kind of object in a listing.
type ResourceKind = uapi.ResourceKind

// Kinds of objects.
const (
	ResourceQP      = uapi.ResourceQP
	ResourceCQ      = uapi.ResourceCQ
	ResourceMR      = uapi.ResourceMR
	ResourcePD      = uapi.ResourcePD
	ResourceSRQ     = uapi.ResourceSRQ
	ResourceMW      = uapi.ResourceMW
	ResourceAH      = uapi.ResourceAH
	ResourceProgram = uapi.ResourceProgram
	ResourceCMID    = uapi.ResourceCMID // an identifier of pkg/rdmacm
)

// Resources lists the objects of a kind: those of every program, for root and
// the adapter's own user, else those of the user's own programs. Objects that
// come or go meanwhile may be in it or not. EINVAL: an unknown kind.
func (d *Device) Resources(kind ResourceKind) ([]Resource, error) {
	var all []Resource
	req := uapi.ListResourcesRequest{Kind: kind}
	for {
		var rep uapi.ListResourcesReply
		if err := d.ctl.do("list resources", uapi.OpListResources, &req, &rep); err != nil {
			return nil, err
		}
		all = append(all, rep.Resources...)
		if rep.Next <= req.After { // 0: the last part
			return all, nil
		}
		req.After = rep.Next
	}
}

// Counter is one of the adapter's counters under its short name.
type Counter = uapi.Counter

// Counters returns the adapter's counters since it started, as `rdma statistic`
// shows them.
func (d *Device) Counters() ([]Counter, error) {
	var rep uapi.ListCountersReply
	err := d.ctl.do("list counters", uapi.OpListCounters, &uapi.ListCountersRequest{}, &rep)
	return rep.Counters, err
}

package inspect

import (
	"time"

	"github.com/softroce/softroce/pkg/verbs"
)

// GIDLister is an adapter that says which addresses it has and lacks; *verbs.Device
// is one.
type GIDLister interface {
	GIDStatus() ([]verbs.GIDStatus, error)
}

// GIDs shows the adapter's addresses: index, address, type, interface, and
// whether each can be used or why not.
func GIDs(list GIDLister) Look {
	return func(Source, time.Time) (View, error) {
		all, err := list.GIDStatus()
		if err != nil {
			return nil, err
		}
		t := named{Table{
			Titles: []string{"INDEX", "ADDRESS", "GID", "TYPE", "INTERFACE", "MTU", "USABLE", "WHY"},
			keys:   []string{"index", "address", "gid", "type", "interface", "link_mtu", "usable", "why"},
		}, "gids"}
		for i := range all {
			g := &all[i]
			usable := cell{g.Usable, "no"}
			if g.Usable {
				usable.text = "yes"
			}
			t.rows = append(t.rows, []cell{
				orNone(g.Index, g.Index >= 0), orNone(g.Address, g.Address != ""), orNone(g.GID, g.GID != ""),
				{g.Type, g.Type},
				orNone(g.Interface, g.Interface != ""), orNone(g.LinkMTU, g.LinkMTU > 0), usable, orNone(clean(g.Why), g.Why != ""),
			})
		}
		return &t, nil
	}
}

func orNone(v any, has bool) cell {
	if !has {
		return cell{nil, "-"}
	}
	return cell{v, plain(v)}
}

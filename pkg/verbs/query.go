package verbs

import (
	"fmt"
	"strings"

	"github.com/softroce/softroce/internal/uapi"
)

// DeviceAttr are the device's limits and abilities (ibv_device_attr).
type DeviceAttr = uapi.DeviceAttr

// PortAttr are the port's attributes (ibv_port_attr).
type PortAttr = uapi.PortAttr

// GIDEntry is one row of the GID table (ibv_gid_entry).
type GIDEntry = uapi.GIDEntry

// Query returns the device's attributes (ibv_query_device).
func (d *Device) Query() (DeviceAttr, error) {
	var rep uapi.QueryDeviceReply
	err := d.ctl.do("query device", uapi.OpQueryDevice, &uapi.QueryDeviceRequest{}, &rep)
	return rep.Attr, err
}

// QueryPort returns the attributes of port 1, the only one (ibv_query_port).
// EINVAL: another port.
func (d *Device) QueryPort(port uint8) (PortAttr, error) {
	var rep uapi.QueryPortReply
	err := d.ctl.do("query port", uapi.OpQueryPort, &uapi.QueryPortRequest{Port: port}, &rep)
	return rep.Attr, err
}

// GIDTable returns the valid entries of the GID table (ibv_query_gid_table).
func (d *Device) GIDTable() ([]GIDEntry, error) {
	var rep uapi.QueryGIDTableReply
	err := d.ctl.do("query GID table", uapi.OpQueryGIDTable, &uapi.QueryGIDTableRequest{}, &rep)
	return rep.Entries, err
}

// QueryGID returns the GID at an index (ibv_query_gid). EINVAL: the table has
// no such entry.
func (d *Device) QueryGID(index int) (GID, error) {
	table, err := d.GIDTable()
	if err != nil {
		return GID{}, err
	}
	var have []string
	for _, e := range table {
		if int(e.Index) == index {
			return e.GID, nil
		}
		if len(have) < 8 {
			have = append(have, fmt.Sprintf("%d (%v)", e.Index, e.GID.Addr()))
		}
	}
	if len(have) == 0 {
		have = []string{"none"}
	}
	return GID{}, invalid("query GID", "index %d: the GID table has no such entry, it has %s; softroce gids shows why an address is not in it", index, strings.Join(have, ", "))
}

// QueryPKey returns the partition key at an index (ibv_query_pkey). The table
// has one, the default with full membership. EINVAL: another port or index.
func (d *Device) QueryPKey(port uint8, index int) (uint16, error) {
	if port != 1 || index != 0 {
		return 0, invalid("query P_Key", "port %d, index %d: there is port 1, and index 0", port, index)
	}
	return 0xFFFF, nil
}

// NumCompVectors is how many completion vectors there are
// (ibv_context.num_comp_vectors), at least 1.
func (d *Device) NumCompVectors() int { return int(d.hello.Workers) }

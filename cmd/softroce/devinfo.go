package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/softroce/softroce/pkg/verbs"
)

// deviceInfo is what devinfo shows, for machines.
type deviceInfo struct {
	Name   string           `json:"name"`
	Device verbs.DeviceAttr `json:"device"`
	Port   verbs.PortAttr   `json:"port"`
	GIDs   []deviceGID      `json:"gids"`
	Socket string           `json:"socket"`
}

type deviceGID struct {
	Index   uint32 `json:"index"`
	GID     string `json:"gid"`
	Address string `json:"address"`
	Type    string `json:"type"`
}

func newDevinfoCmd() *cobra.Command {
	var socket string
	var asJSON bool
	c := &cobra.Command{
		Use:   "devinfo",
		Short: "Show the adapter's attributes, port and GID table",
		Long:  `devinfo asks a running daemon and shows what ibv_devinfo -v shows of an adapter.`,
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			d, err := verbs.Open(&verbs.Options{Socket: socket})
			if err != nil {
				return err
			}
			defer d.Close()
			info, err := queryDevice(d)
			if err != nil {
				return err
			}
			info.Socket = verbs.SocketPath(socket)
			if asJSON {
				return json.NewEncoder(c.OutOrStdout()).Encode(info)
			}
			printDevice(c.OutOrStdout(), info)
			return nil
		},
	}
	addSocketFlag(c, &socket)
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// addSocketFlag adds the flag by which every client command finds its daemon.
func addSocketFlag(c *cobra.Command, socket *string) {
	c.Flags().StringVar(socket, "socket", "", "the daemon's socket (default $SOFTROCE_SOCKET, then the usual places)")
}

func queryDevice(d *verbs.Device) (*deviceInfo, error) {
	info := &deviceInfo{Name: d.Name()}
	var err error
	if info.Device, err = d.Query(); err != nil {
		return nil, err
	}
	if info.Port, err = d.QueryPort(1); err != nil {
		return nil, err
	}
	table, err := d.GIDTable()
	for _, e := range table {
		info.GIDs = append(info.GIDs, deviceGID{e.Index, e.GID.String(), e.GID.Addr().String(), "RoCE v2"})
	}
	return info, err
}

func printDevice(w io.Writer, info *deviceInfo) {
	d, p := &info.Device, &info.Port
	row := func(indent, name string, value any) { fmt.Fprintf(w, "%s%-28s%v\n", indent, name+":", value) }
	row("", "hca_id", info.Name)
	row("\t", "transport", "InfiniBand (0)")
	row("\t", "fw_ver", d.FWVersion)
	row("\t", "node_guid", guid(d.NodeGUID))
	row("\t", "sys_image_guid", guid(d.SysImageGUID))
	row("\t", "vendor_id", fmt.Sprintf("%#06x", d.VendorID))
	row("\t", "vendor_part_id", d.VendorPartID)
	row("\t", "hw_ver", fmt.Sprintf("%#X", d.HWVersion))
	row("\t", "phys_port_cnt", d.PhysPortCount)
	row("\t", "max_mr_size", fmt.Sprintf("%#x", d.MaxMRSize))
	row("\t", "page_size_cap", fmt.Sprintf("%#x", d.PageSizeCap))
	row("\t", "max_qp", d.MaxQP)
	row("\t", "max_qp_wr", d.MaxQPWR)
	row("\t", "device_cap_flags", fmt.Sprintf("%#08x", d.DeviceCapFlags))
	for _, c := range deviceCaps {
		if d.DeviceCapFlags&c.flag != 0 {
			fmt.Fprintf(w, "\t\t\t\t\t%s\n", c.name)
		}
	}
	row("\t", "max_sge", d.MaxSGE)
	row("\t", "max_sge_rd", d.MaxSGERead)
	row("\t", "max_cq", d.MaxCQ)
	row("\t", "max_cqe", d.MaxCQE)
	row("\t", "max_mr", d.MaxMR)
	row("\t", "max_pd", d.MaxPD)
	row("\t", "max_qp_rd_atom", d.MaxQPRDAtomic)
	row("\t", "max_res_rd_atom", d.MaxResRDAtomic)
	row("\t", "max_qp_init_rd_atom", d.MaxQPInitRDAtomic)
	row("\t", "atomic_cap", atomicCap(d.AtomicCap))
	row("\t", "max_mw", d.MaxMW)
	row("\t", "max_mcast_grp", d.MaxMcastGroup)
	row("\t", "max_mcast_qp_attach", d.MaxMcastQPAttach)
	row("\t", "max_total_mcast_qp_attach", d.MaxTotalMcastQPAttach)
	row("\t", "max_ah", d.MaxAH)
	row("\t", "max_srq", d.MaxSRQ)
	row("\t", "max_srq_wr", d.MaxSRQWR)
	row("\t", "max_srq_sge", d.MaxSRQSGE)
	row("\t", "max_inline_data", d.MaxInline)
	row("\t", "max_pkeys", d.MaxPKeys)
	row("\t", "local_ca_ack_delay", d.LocalCAAckDelay)
	row("\t", "num_comp_vectors", d.NumCompVectors)
	printODP(w, d)
	row("\t", "completion timestamp_mask", fmt.Sprintf("0x%016x", d.CompletionTimestampMask))
	row("\t", "hca_core_clock", fmt.Sprintf("%dkHZ", d.HCACoreClock))
	fmt.Fprintf(w, "\t\tport:\t1\n")
	printPort(p, func(name string, v any) { row("\t\t\t", name, v) })
	for _, g := range info.GIDs {
		row("\t\t\t", fmt.Sprintf("GID[%3d]", g.Index), fmt.Sprintf("%s, %s (%s)", g.GID, g.Type, g.Address))
	}
}

// deviceCaps names the bits of device_cap_flags that an adapter may set
// (ibv_query_device(3), enum ibv_device_cap_flags).
var deviceCaps = []struct {
	flag uint32
	name string
}{
	{1 << 1, "BAD_PKEY_CNTR"},
	{1 << 2, "BAD_QKEY_CNTR"},
	{1 << 6, "UD_AV_PORT_ENFORCE"},
	{1 << 7, "CURR_QP_STATE_MOD"},
	{1 << 10, "PORT_ACTIVE_EVENT"},
	{1 << 11, "SYS_IMAGE_GUID"},
	{1 << 12, "RC_RNR_NAK_GEN"},
	{1 << 13, "SRQ_RESIZE"},
	{1 << 17, "MEM_WINDOW"},
	{1 << 21, "MEM_MGT_EXTENSIONS"},
	{1 << 24, "MEM_WINDOW_TYPE_2B"},
}

// odpCaps names the bits of what a transport's operations may do with memory on
// demand (ibv_query_device_ex(3), enum ibv_odp_transport_cap_bits).
var odpCaps = []struct {
	flag uint32
	name string
}{
	{verbs.ODPSupportSend, "SUPPORT_SEND"},
	{verbs.ODPSupportRecv, "SUPPORT_RECV"},
	{verbs.ODPSupportWrite, "SUPPORT_WRITE"},
	{verbs.ODPSupportRead, "SUPPORT_READ"},
	{verbs.ODPSupportAtomic, "SUPPORT_ATOMIC"},
	{verbs.ODPSupportSRQRecv, "SUPPORT_SRQ"},
}

func printODP(w io.Writer, d *verbs.DeviceAttr) {
	fmt.Fprintf(w, "\tgeneral_odp_caps:\n")
	if d.ODPGeneral&verbs.ODPSupport != 0 {
		fmt.Fprintf(w, "\t\t\t\t\tODP_SUPPORT\n")
	}
	if d.ODPGeneral&verbs.ODPSupportImplicit != 0 {
		fmt.Fprintf(w, "\t\t\t\t\tODP_SUPPORT_IMPLICIT\n")
	}
	for _, t := range []struct {
		name string
		caps uint32
	}{{"rc", d.ODPRC}, {"uc", d.ODPUC}, {"ud", d.ODPUD}} {
		fmt.Fprintf(w, "\t%s_odp_caps:\n", t.name)
		if t.caps == 0 {
			fmt.Fprintf(w, "\t\t\t\t\tNO SUPPORT\n")
		}
		for _, c := range odpCaps {
			if t.caps&c.flag != 0 {
				fmt.Fprintf(w, "\t\t\t\t\t%s\n", c.name)
			}
		}
	}
}

func printPort(p *verbs.PortAttr, row func(string, any)) {
	row("state", portState(p.State))
	row("max_mtu", fmt.Sprintf("%d (%d)", p.MaxMTU.Bytes(), p.MaxMTU))
	row("active_mtu", fmt.Sprintf("%d (%d)", p.ActiveMTU.Bytes(), p.ActiveMTU))
	row("link_mtu", p.LinkMTU)
	row("sm_lid", p.SMLID)
	row("port_lid", p.LID)
	row("port_lmc", fmt.Sprintf("%#02x", p.LMC))
	row("link_layer", "Ethernet")
	row("max_msg_sz", fmt.Sprintf("%#x", p.MaxMessageSize))
	row("port_cap_flags", fmt.Sprintf("%#08x", p.CapFlags))
	row("port_cap_flags2", fmt.Sprintf("%#04x", p.CapFlags2))
	row("max_vl_num", p.MaxVLNum)
	row("bad_pkey_cntr", fmt.Sprintf("%#x", p.BadPKeyCounter))
	row("qkey_viol_cntr", fmt.Sprintf("%#x", p.QKeyViolations))
	row("sm_sl", p.SMSL)
	row("pkey_tbl_len", p.PKeyTableLen)
	row("gid_tbl_len", p.GIDTableLen)
	row("subnet_timeout", p.SubnetTimeout)
	row("init_type_reply", p.InitType)
	row("active_width", portWidth(p.ActiveWidth))
	row("active_speed", fmt.Sprintf("%.1f Gbps (%d)", portSpeed(p.ActiveSpeed), p.ActiveSpeed))
	row("phys_state", physState(p.PhysState))
}

// portWidth names ibv_port_attr's active_width.
func portWidth(w uint8) string {
	for i, lanes := range []int{1, 4, 8, 12, 2} {
		if w == 1<<i {
			return fmt.Sprintf("%dX (%d)", lanes, w)
		}
	}
	return fmt.Sprintf("(%d)", w)
}

// portSpeed is active_speed in Gbit/s for each lane; 0 where the value is none.
func portSpeed(s uint8) float64 {
	for i, gbps := range []float64{2.5, 5, 10, 10, 14, 25, 50} {
		if s == 1<<i {
			return gbps
		}
	}
	return 0
}

// physState names ibv_port_attr's phys_state.
func physState(s uint8) string {
	names := []string{
		1: "SLEEP", 2: "POLLING", 3: "DISABLED", 4: "PORT_CONFIGURATION_TRAINING", 5: "LINK_UP", 6: "LINK_ERROR_RECOVERY", 7: "PHY_TEST",
	}
	if int(s) < len(names) && s > 0 {
		return fmt.Sprintf("%s (%d)", names[s], s)
	}
	return fmt.Sprintf("(%d)", s)
}

func portState(s uint8) string {
	switch s {
	case 1:
		return "PORT_DOWN (1)"
	case 4:
		return "PORT_ACTIVE (4)"
	}
	return fmt.Sprintf("(%d)", s)
}

func atomicCap(c uint32) string {
	switch c {
	case 0:
		return "ATOMIC_NONE (0)"
	case 1:
		return "ATOMIC_HCA (1)"
	case 2:
		return "ATOMIC_GLOB (2)"
	}
	return fmt.Sprintf("(%d)", c)
}

// guid prints an EUI-64 as the field does.
func guid(v uint64) string {
	return fmt.Sprintf("%04x:%04x:%04x:%04x", v>>48, v>>32&0xFFFF, v>>16&0xFFFF, v&0xFFFF)
}

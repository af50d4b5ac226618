package verbs

import "github.com/softroce/softroce/pkg/bth"

// Bits of DeviceAttr.DeviceCapFlags (specification values:
// ibv_device_cap_flags).
const (
	DeviceResizeMaxWR      uint32 = 1 << 0
	DeviceBadPKeyCntr      uint32 = 1 << 1
	DeviceBadQKeyCntr      uint32 = 1 << 2
	DeviceRawMulti         uint32 = 1 << 3
	DeviceAutoPathMig      uint32 = 1 << 4
	DeviceChangePhyPort    uint32 = 1 << 5
	DeviceUDAVPortEnforce  uint32 = 1 << 6
	DeviceCurrQPStateMod   uint32 = 1 << 7
	DeviceShutdownPort     uint32 = 1 << 8
	DeviceInitType         uint32 = 1 << 9
	DevicePortActiveEvent  uint32 = 1 << 10
	DeviceSysImageGUID     uint32 = 1 << 11
	DeviceRCRNRNakGen      uint32 = 1 << 12
	DeviceSRQResize        uint32 = 1 << 13
	DeviceNNotifyCQ        uint32 = 1 << 14
	DeviceMemWindow        uint32 = 1 << 17
	DeviceUDIPCsum         uint32 = 1 << 18
	DeviceXRC              uint32 = 1 << 20
	DeviceMemMgtExtensions uint32 = 1 << 21
	DeviceMemWindowType2A  uint32 = 1 << 23
	DeviceMemWindowType2B  uint32 = 1 << 24
	DeviceRCIPCsum         uint32 = 1 << 25
	DeviceRawIPCsum        uint32 = 1 << 26
	DeviceManagedFlowSteer uint32 = 1 << 29
)

// Values of DeviceAttr.AtomicCap (ibv_atomic_cap).
const (
	AtomicNone uint32 = 0
	AtomicHCA  uint32 = 1 // among the queue pairs of one adapter
	AtomicGlob uint32 = 2 // against the CPU's, too
)

// Bits of DeviceAttr.ODPGeneral (ibv_odp_general_caps), and of its ODPRC, ODPUC
// and ODPUD (ibv_odp_transport_cap_bits).
const (
	ODPSupport         uint32 = 1 << 0
	ODPSupportImplicit uint32 = 1 << 1

	ODPSupportSend    uint32 = 1 << 0
	ODPSupportRecv    uint32 = 1 << 1
	ODPSupportWrite   uint32 = 1 << 2
	ODPSupportRead    uint32 = 1 << 3
	ODPSupportAtomic  uint32 = 1 << 4
	ODPSupportSRQRecv uint32 = 1 << 5
)

// Values of PortAttr.State (ibv_port_state) and LinkLayer.
const (
	PortNop         uint8 = 0
	PortDown        uint8 = 1
	PortInit        uint8 = 2
	PortArmed       uint8 = 3
	PortActive      uint8 = 4
	PortActiveDefer uint8 = 5

	LinkLayerInfiniBand uint8 = 1
	LinkLayerEthernet   uint8 = 2
)

// Path MTUs (ibv_mtu); MTU.Bytes gives their size.
const (
	MTU256  = bth.MTU256
	MTU512  = bth.MTU512
	MTU1024 = bth.MTU1024
	MTU2048 = bth.MTU2048
	MTU4096 = bth.MTU4096
)

package udp4791

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// The files of the calling thread, which may be in another network namespace
// than the rest of the process.
const procNet = "/proc/thread-self/net/"

// busyByPort says who is bound to port 4791 so that addr cannot be: the
// address itself or a wildcard, looked up in /proc. All of it is best effort;
// what is not known stays zero.
func busyByPort(addr netip.Addr) *BusyError {
	e := &BusyError{Addr: addr}
	var ino uint64
	for _, file := range []string{"udp", "udp6"} {
		for _, s := range udpSockets(procNet + file) {
			if s.port != Port {
				continue
			}
			switch {
			case s.addr.Unmap() == addr.WithZone(""):
				e.Bound, ino = netip.Addr{}, s.inode
			case s.addr.IsUnspecified() && ino == 0:
				e.Bound, ino = s.addr, s.inode
			}
		}
	}
	e.PID = pidOfInode(ino)
	e.Command = commandOf(e.PID)
	return e
}

// udpSocket is one line of /proc/net/udp or udp6.
type udpSocket struct {
	addr  netip.Addr
	port  int
	inode uint64
}

// udpSockets reads a table of UDP sockets; a missing file is an empty table.
func udpSockets(path string) []udpSocket {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	var out []udpSocket
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if s, ok := parseUDPLine(sc.Text()); ok {
			out = append(out, s)
		}
	}
	return out
}

// parseUDPLine reads "sl local_address rem_address st ... inode ...": the
// address is hexadecimal, each 32-bit word in host byte order; the inode is
// field 9.
func parseUDPLine(line string) (udpSocket, bool) {
	f := strings.Fields(line)
	if len(f) < 10 {
		return udpSocket{}, false
	}
	host, port, ok := strings.Cut(f[1], ":")
	raw, err := hex.DecodeString(host)
	if !ok || err != nil || len(raw)%4 != 0 {
		return udpSocket{}, false
	}
	for i := 0; i < len(raw); i += 4 {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	a, ok := netip.AddrFromSlice(raw)
	p, err1 := strconv.ParseUint(port, 16, 16)
	ino, err2 := strconv.ParseUint(f[9], 10, 64)
	if !ok || err1 != nil || err2 != nil {
		return udpSocket{}, false
	}
	return udpSocket{a, int(p), ino}, true
}

// unixInode finds the inode of a listening Unix socket by name, 0 if none.
// Lines are "Num RefCount Protocol Flags Type St Inode Path"; the connections
// in the listener's queue have the same path, but not its flag.
func unixInode(name string) uint64 {
	const acceptCon = 1 << 16 // __SO_ACCEPTCON
	f, err := os.Open(procNet + "unix")
	if err != nil {
		return 0
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		w := strings.Fields(sc.Text())
		if len(w) != 8 || w[7] != name {
			continue
		}
		if flags, err := strconv.ParseUint(w[3], 16, 32); err == nil && flags&acceptCon != 0 {
			ino, _ := strconv.ParseUint(w[6], 10, 64)
			return ino
		}
	}
	return 0
}

// pidOfInode finds a process that has the socket open, 0 if none is visible.
func pidOfInode(ino uint64) int {
	if ino == 0 {
		return 0
	}
	want := "socket:[" + strconv.FormatUint(ino, 10) + "]"
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range procs {
		fds, err := os.ReadDir(p + "/fd")
		if err != nil {
			continue // gone, or another user's
		}
		for _, fd := range fds {
			if t, err := os.Readlink(p + "/fd/" + fd.Name()); err == nil && t == want {
				pid, _ := strconv.Atoi(filepath.Base(p))
				return pid
			}
		}
	}
	return 0
}

// commandOf returns a process's command name, "" if not known.
func commandOf(pid int) string {
	if pid == 0 {
		return ""
	}
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// sysctlInt reads a number under /proc/sys, -1 if it is not there.
func sysctlInt(name string) int {
	b, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(name, ".", "/"))
	if err != nil {
		return -1
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return -1
	}
	return n
}

// ipv6Disabled says that IPv6 is switched off as a whole in this network
// namespace.
func ipv6Disabled() bool {
	n := sysctlInt("net.ipv6.conf.all.disable_ipv6")
	return n == 1 || n == -1
}

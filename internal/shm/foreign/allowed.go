package foreign

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/softroce/softroce/internal/shm"
)

// ErrNotAllowed is what a refusal of Allowed wraps.
var ErrNotAllowed = errors.New("foreign memory is not allowed")

// Allowed says whether this process may reach the memory of a program. It may
// when that gives it nothing to do that the program's user could not do: both
// are the same user in the same user namespace, and this process has no
// effective capability that the program lacks, or both are root. Otherwise a
// program could exec something set-uid and have this process write into it. The
// error wraps ErrNotAllowed and gives the reason in words.
func Allowed(peer shm.Cred) error {
	if peer.PID <= 0 {
		return refuse("the program's process is not visible in this pid namespace")
	}
	them, err := readStatus(strconv.Itoa(peer.PID))
	if err != nil {
		return refuse("cannot learn who process %d is: %v", peer.PID, err)
	}
	us, err := readStatus("self")
	if err != nil {
		return refuse("cannot learn who this process is: %v", err)
	}
	return check(peer, us, them)
}

// Capabilities are the effective capabilities of a program's process (the bits
// of capabilities(7)); an error when it is not visible here or lives in another
// user namespace, where capabilities mean something else.
func Capabilities(peer shm.Cred) (uint64, error) {
	if peer.PID <= 0 {
		return 0, errors.New("the program's process is not visible in this pid namespace")
	}
	them, err := readStatus(strconv.Itoa(peer.PID))
	if err != nil {
		return 0, err
	}
	us, err := readStatus("self")
	if err != nil {
		return 0, err
	}
	if us.userNS != them.userNS {
		return 0, fmt.Errorf("process %d lives in another user namespace (%s, here %s)", peer.PID, them.userNS, us.userNS)
	}
	return them.caps, nil
}

// status is what counts of a process.
type status struct {
	uids   [4]uint32 // real, effective, saved, file system
	caps   uint64    // effective capabilities
	userNS string    // the user namespace's name
}

func check(peer shm.Cred, us, them status) error {
	if us.userNS != them.userNS {
		return refuse("process %d lives in another user namespace (%s, here %s)", peer.PID, them.userNS, us.userNS)
	}
	euid := us.uids[1]
	if peer.UID != euid {
		return refuse("the program connected as user %d, the adapter runs as user %d", peer.UID, euid)
	}
	for _, uid := range them.uids {
		if uid != euid {
			return refuse("process %d has the user ids %v, the adapter runs as user %d", peer.PID, them.uids, euid)
		}
	}
	if more := us.caps &^ them.caps; more != 0 && euid != 0 {
		return refuse("the adapter has capabilities that process %d lacks (%#x)", peer.PID, more)
	}
	return nil
}

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: "+format+"; use shared regions", append([]any{ErrNotAllowed}, args...)...)
}

// readStatus reads /proc/PID/status and the name of the user namespace.
func readStatus(pid string) (status, error) {
	var s status
	text, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return s, err
	}
	if s.userNS, err = os.Readlink("/proc/" + pid + "/ns/user"); err != nil {
		return s, err
	}
	return s, s.parse(string(text))
}

func (s *status) parse(text string) error {
	var haveUID, haveCap bool
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ":")
		switch key {
		case "Uid":
			_, err := fmt.Sscan(value, &s.uids[0], &s.uids[1], &s.uids[2], &s.uids[3])
			haveUID = err == nil
		case "CapEff":
			caps, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			s.caps, haveCap = caps, err == nil
		}
	}
	if !haveUID || !haveCap {
		return errors.New("its status names no user ids or capabilities")
	}
	return nil
}

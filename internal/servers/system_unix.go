//go:build unix

package servers

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
)

// serverUser returns the user as whom servers run that refuse to run as root, if root runs
// this.
func serverUser() (uid, gid int, ok bool) {
	if os.Geteuid() != 0 {
		return 0, 0, false
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.Atoi(u.Uid)
		gid, gidErr := strconv.Atoi(u.Gid)
		if uidErr == nil && gidErr == nil {
			return uid, gid, true
		}
	}
	return 0, 0, false
}

// notAsRoot makes root run the command as the user for servers.
func notAsRoot(command *exec.Cmd) {
	if uid, gid, ok := serverUser(); ok {
		command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	}
}

// giveToServer makes the file belong to the user for servers.
func giveToServer(file string) error {
	uid, gid, ok := serverUser()
	if !ok {
		return nil
	}
	if err := os.Chown(file, uid, gid); err != nil {
		return fmt.Errorf("for a server that does not run as root: %w", err)
	}
	return nil
}

// These signals stop a process, and let it go on.
var pause, resume os.Signal = syscall.SIGSTOP, syscall.SIGCONT

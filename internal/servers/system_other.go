//go:build !unix

package servers

import (
	"os"
	"os/exec"
)

// On other systems servers run as whoever starts them.
func notAsRoot(*exec.Cmd) {}

func giveToServer(string) error { return nil }

// Other systems have no such signals, and none of the servers. Sending these fails.
var pause, resume os.Signal = os.Interrupt, os.Interrupt

//go:build unix

package sharedfaults_test

import (
	"os"
	"syscall"
)

// These signals stop a process, and let it go on.
var pause, resume os.Signal = syscall.SIGSTOP, syscall.SIGCONT

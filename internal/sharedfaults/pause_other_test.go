//go:build !unix

package sharedfaults_test

import "os"

// Other systems have no such signals, and none of the servers. Sending these fails.
var pause, resume os.Signal = os.Interrupt, os.Interrupt

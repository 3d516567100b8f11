//go:build !linux

package serverconn

import "net"

// canAsk reports false: this system has no call that looks for the end of the
// stream and does not read.
func canAsk(net.Conn) bool { return false }

func peerGone(net.Conn) bool { return false }

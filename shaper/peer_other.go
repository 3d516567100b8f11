//go:build !linux

package shaper

import "net"

// canAsk says that no connection can be asked: this system has no call for it
// that does not also read.
func canAsk(net.Conn) bool { return false }

func peerGone(net.Conn) bool { return false }

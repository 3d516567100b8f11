package run

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports are taken from below those that the system hands out to clients (from 32768 on
// Linux): a client could get one before the server listens there, or even be connected to
// itself.
const firstPort, ports = 20_000, 10_000

var given = struct {
	mu sync.Mutex
	is map[int]bool
}{is: map[int]bool{}}

// FreeAddress returns an address on loopback on which nobody listens, and another one with
// each call. Another program may take it before it is used.
func FreeAddress() (string, error) {
	given.mu.Lock()
	defer given.mu.Unlock()
	for range ports {
		port := firstPort + rand.IntN(ports)
		if given.is[port] {
			continue
		}
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		listener, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		given.is[port] = true
		return address, listener.Close()
	}
	return "", errors.New("no free port was found")
}

package shared

import (
	"io"
	"math/rand/v2"
	"net"
	"time"
)

// A network forwards connections to a server, and takes its time for it.
type network struct {
	address     string
	listener    net.Listener
	target      string
	rtt, jitter time.Duration
}

// openNetwork returns a network of which a round trip takes rtt ± jitter. It must be closed.
func openNetwork(target string, rtt, jitter time.Duration) (*network, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	n := &network{address: listener.Addr().String(), listener: listener, target: target, rtt: rtt, jitter: jitter}
	go n.accept()
	return n, nil
}

func (n *network) close() { _ = n.listener.Close() } // Its connections end with the process.

func (n *network) accept() {
	for {
		client, err := n.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", n.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		go n.forward(server, client)
		go n.forward(client, server)
	}
}

// A packet is what has been read at once, and when it is to arrive.
type packet struct {
	data []byte
	at   time.Time
}

// forward takes what one side has sent to the other, half a round trip later, in order.
func (n *network) forward(to, from net.Conn) {
	packets := make(chan packet, 1024)
	go func() {
		defer to.Close()
		for p := range packets {
			time.Sleep(time.Until(p.at))
			if _, err := to.Write(p.data); err != nil {
				_ = from.Close()
			}
		}
	}()
	defer close(packets)
	for {
		data := make([]byte, 4096)
		read, err := from.Read(data)
		if read > 0 {
			delay := n.rtt / 2
			if n.jitter > 0 {
				delay += time.Duration(rand.Int64N(int64(n.jitter))) - n.jitter/2
			}
			packets <- packet{data[:read], time.Now().Add(delay)}
		}
		if err != nil {
			if err != io.EOF {
				_ = to.Close()
			}
			return
		}
	}
}

package replicas

import (
	"context"
	"net"
	"net/http"
)

// NewTransport lets a test bring the connections to other replicas.
func NewTransport(dial func(ctx context.Context, network, address string) (net.Conn, error)) http.RoundTripper {
	return newTransport(dial)
}

// Stop does to a Replica what a process that is stopped does: it neither asks the store nor notices that time passes.
func (r *Replica) Stop() {
	r.cancel()
	<-r.done
	r.expiry.Stop()
}

// Bodies returns the bytes that are kept of bodies.
func (r *Replica) Bodies() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bodies
}

// Left returns how many calls are known to have left that were passed here.
func (r *Replica) Left() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.left) + len(r.leftOld)
}

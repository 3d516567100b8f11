package redisbucket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// dials has the state of the ways to the servers of a client. A call may be too short to make a
// connection to a server that is far away, and go-redis cuts the greeting of a connection with the
// context of the call for which it is made. So no call would ever reach such a server, and each
// would tell only that its time is over. Therefore connections are made outside of calls until one
// has succeeded, and again when one has run out of time.
type dials struct {
	reached sync.Map // the addresses of nodes that have answered, and at which no call has run out of time since

	mu     sync.Mutex
	failed map[string]error    // by the address of a node: why it could not be dialed of late; under "" is the latest error of all
	under  map[string]*attempt // by the address of a node: the connection that is being made
}

// An attempt is a connection that is being made.
type attempt struct {
	over chan struct{} // closed when err is set
	err  error
}

// connectTimeout bounds how long a connection is made: time for several round trips to the other
// side of the world.
const connectTimeout = 5 * time.Second

// watch adds the hook to a client. The nodes of a cluster that are known already have none.
func (d *dials) watch(client redis.UniversalClient) {
	d.failed, d.under = make(map[string]error), make(map[string]*attempt)
	if cluster, ok := client.(*redis.ClusterClient); ok {
		cluster.OnNewNode(func(node *redis.Client) { node.AddHook(dialHook{d, node.Options().Addr}) })
		return
	}
	client.AddHook(dialHook{d, ""})
}

// note notes that a node could not be dialed, or if err is nil, that it could be.
func (d *dials) note(node string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil {
		delete(d.failed, node)
		delete(d.failed, "")
		return
	}
	d.failed[node], d.failed[""] = err, err
}

// explain returns the error of a context that has ended during a call, with the reason why the
// node could not be dialed, if there is one.
func (d *dials) explain(node string, err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if reason := d.failed[node]; reason != nil {
		return fmt.Errorf("redisbucket: can't connect: %w (%w)", reason, err)
	}
	return err
}

// A dialHook is a [redis.Hook] that notes which attempts to dial a node fail, and changes nothing.
type dialHook struct {
	to   *dials
	node string
}

// DialHook implements [redis.Hook].
func (h dialHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		if !errors.Is(err, context.Canceled) { // An attempt that was given up says nothing.
			h.to.note(h.node, err)
		}
		return conn, err
	}
}

// ProcessHook implements [redis.Hook].
func (h dialHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// ProcessPipelineHook implements [redis.Hook].
func (h dialHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// node returns the address of the server of a cluster that has a name, as far as the client knows
// it; "" elsewhere.
func (b *Bucket) node(name string) string {
	if b.cluster == nil {
		return ""
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel() // The client must not ask for it now.
	node, err := b.cluster.MasterForKey(ended, name)
	if err != nil {
		return ""
	}
	return node.Options().Addr
}

// reach returns when there is a connection to the server of a name, or ctx has ended, or the server
// has refused.
func (b *Bucket) reach(ctx context.Context, name string) error {
	d, node := &b.dials, b.node(name)
	if _, ok := d.reached.Load(node); ok {
		return nil
	}
	d.mu.Lock()
	a := d.under[node]
	if a == nil {
		a = &attempt{over: make(chan struct{})}
		d.under[node] = a
		go b.connect(node, name, a)
	}
	d.mu.Unlock()
	select {
	case <-a.over:
		return a.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// connect asks the server of a name to do nothing with the script of a [Bucket.Take]. After that a
// connection is in the client's pool, and the server has the script.
func (b *Bucket) connect(node, name string, a *attempt) {
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	_, a.err = b.do(ctx, newCommand(ctx, []any{"eval", takeScript.text, 1, name}))
	if a.err == nil {
		b.dials.reached.Store(node, nil)
	}
	b.dials.mu.Lock()
	delete(b.dials.under, node)
	b.dials.mu.Unlock()
	close(a.over)
}

// ranOut returns the error of a call for a name whose time is over, which is err, with the reason if
// that is known. The next call finds out whether the server can be reached.
func (b *Bucket) ranOut(name string, err error) error {
	node := b.node(name)
	if errors.Is(err, context.DeadlineExceeded) {
		b.dials.reached.Delete(node)
	}
	return b.dials.explain(node, err)
}

// Package replicas gives several processes one line: at any time one replica has the line, and the others pass their calls on to it
// over HTTP. A [shared.Keeper] says which one has it. So the line need not be shared, whatever it counts.
//
//	r, err := replicas.New(replicas.Config{Keeper: store, Key: "llm", Advertise: "10.1.2.3:8080", Line: line, …})
//	...
//	handler := r.Wrap(line)
//
// What it promises:
//
//  1. One line. A replica lets calls leave only while its lease lasts, counted from before it asked for it. It looks at the clock
//     after each wake-up, right before a call is sent ([Replica.Leaves]). Exception: a replica that is stopped between the look and
//     the call sends that call when it wakes up.
//  2. Bound. A replica begins with the levels and holds that the one before has handed on, and else with all levels full and the
//     holds of the last renewal. Who finds that the store has lost its state waits for a lease that it may have lost. Exception: a
//     call that costs more than a burst and has left since that renewal.
//  3. Takeover. After a death another replica begins within 4 s, and after a Shutdown at once if calls were in line.
//  4. No loss. A call that has not left moves to the next replica that has the line, for as long as its body is kept. An answer that
//     has begun, or a call that has left, fails with its replica.
//  5. Not twice. The replica that has the line says when a call leaves, by a response 102 that its caller does not get. A call that
//     may have left is not sent again. Exception: the 102 is lost because a network breaks in the same moment.
package replicas

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"example.com/leakybucket/shaper/shared"
)

// DefaultBodies is the bound for the bytes that all calls of a replica keep of their bodies.
const DefaultBodies = 64 << 20

// A Config has the settings of a [Replica].
type Config struct {
	Keeper    shared.Keeper
	Key       string // of the line in the Keeper, the same in all replicas
	Advertise string // host:port at which the other replicas reach the handler of Wrap, over HTTP/1.1
	Line      Line   // of this process

	// Team returns the team of a call, where it comes in; nil: all calls have the team "". If ok is false, the call is served here,
	// where the handler behind refuses it.
	Team func(*http.Request) (team string, ok bool)

	// Wait returns the longest that a call waits while no replica has the line; nil, or 0: for as long as its caller stays.
	Wait func() time.Duration

	// Fallback is for when the store can't be asked and no replica has the line: each has 1/Fallback of the quota then. 0: calls
	// wait.
	Fallback int

	// Bodies bounds the bytes that calls keep of their bodies to be sent again; 0 means DefaultBodies. At most 1 MiB is kept of each.
	Bodies int64

	// Unavailable responds to a call with status 502 or 503, and says after which time it may come again unless that is 0; nil:
	// without a body. With 503 the call can still be served elsewhere, with its body.
	Unavailable func(w http.ResponseWriter, r *http.Request, status int, retryAfter time.Duration)

	Transport http.RoundTripper // to the other replicas; nil: one of its own
	Log       *slog.Logger      // nil: nothing is logged
}

// A Line is the line of one process, as far as replicas hand it on. Its methods are called by one goroutine at a time.
type Line interface {
	Save() ([]byte, error)  // levels, holds and what else is to be handed on, at Shutdown; at most some 700 kB
	Holds() ([]byte, error) // the rests of holds alone, at each renewal

	// Begin says that this replica has the line from now on. handed is what a Save or Holds has returned an age ago, by the store's
	// clock; nil: nothing. full says that all levels are full besides. After an error nothing has changed.
	Begin(handed []byte, age time.Duration, full bool) error

	Part(n int) error // the line has 1/n of its quota from now on; 1: all of it
}

// A Replica is one of several processes that have one line. [New] makes one, and [Replica.Wrap] puts it in front of the line. It is
// safe for concurrent use. At the end of a process come [Replica.Shutdown], the shutdown of the server, and [Replica.Close].
type Replica struct {
	config    Config
	id        string
	transport http.RoundTripper
	cancel    context.CancelFunc
	done      chan struct{} // closed when the goroutine of run has ended
	kick      chan struct{} // asks the goroutine to ask the store at once; one is enough

	mu sync.Mutex
	standing
	calls
	news chan struct{} // closed when the store has been asked, or something has changed
	seq  int           // how often that was
}

// New returns a Replica that begins to ask the store, or an error that names a wrong setting.
func New(c Config) (*Replica, error) {
	switch err := CheckAdvertise(c.Advertise); {
	case c.Keeper == nil:
		return nil, errors.New("replicas: Config.Keeper is nil")
	case c.Key == "":
		return nil, errors.New("replicas: Config.Key is empty")
	case c.Line == nil:
		return nil, errors.New("replicas: Config.Line is nil")
	case err != nil:
		return nil, fmt.Errorf("replicas: Config.Advertise: %w", err)
	case c.Fallback < 0:
		return nil, fmt.Errorf("replicas: Config.Fallback is %d, must not be negative", c.Fallback)
	case c.Bodies < 0:
		return nil, fmt.Errorf("replicas: Config.Bodies is %d, must not be negative", c.Bodies)
	}
	if c.Bodies == 0 {
		c.Bodies = DefaultBodies
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Wait == nil {
		c.Wait = func() time.Duration { return 0 }
	}
	if c.Team == nil {
		c.Team = func(*http.Request) (string, bool) { return "", true }
	}
	if c.Unavailable == nil {
		c.Unavailable = func(w http.ResponseWriter, _ *http.Request, status int, _ time.Duration) { w.WriteHeader(status) }
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &Replica{
		config: c, id: rand.Text(), transport: c.Transport, cancel: cancel,
		done: make(chan struct{}), kick: make(chan struct{}, 1), news: make(chan struct{}),
		standing: standing{answered: time.Now(), handedOn: make(chan struct{})},
		calls:    calls{ways: map[*way]struct{}{}, passed: map[string]*way{}, left: map[string]struct{}{}},
	}
	if r.transport == nil {
		d := net.Dialer{Timeout: time.Second, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second, Count: 3}}
		r.transport = newTransport(d.DialContext)
	}
	r.expiry = time.AfterFunc(time.Hour, r.expire)
	go r.run(ctx)
	return r, nil
}

// CheckAdvertise returns the mistake in a host and port at which other replicas are to reach this one.
func CheckAdvertise(address string) error {
	host, text, err := net.SplitHostPort(address)
	port, badPort := strconv.ParseUint(text, 10, 16)
	ip, notIP := netip.ParseAddr(host)
	switch {
	case err != nil || badPort != nil || port == 0 || host == "" || notIP != nil && strings.ContainsAny(host, " \t\n\"#%/:<>?@[\\]^`{|}"):
		return fmt.Errorf("%q, must be a host and a port, such as 10.0.0.5:8080 or [fd00::5]:8080", address)
	case ip.Unmap().WithZone("").IsUnspecified():
		return fmt.Errorf("%q is no address that the other replicas could call; give one of this machine, such as 10.0.0.5:%d", address, port)
	}
	return nil
}

// newTransport returns a Transport to other replicas. Each call in line has a connection of its own.
func newTransport(dial func(ctx context.Context, network, address string) (net.Conn, error)) http.RoundTripper {
	return &http.Transport{DialContext: dial, DisableCompression: true, MaxIdleConnsPerHost: 256, IdleConnTimeout: time.Minute}
}

// A State says how a [Replica] stands.
type State struct {
	Here    bool      // this replica has the line
	Apart   bool      // it has a part of the quota for itself, as the store can't be asked
	Keeper  string    // the address of the replica that has the line; "": none is known
	Since   time.Time // when that began
	Err     error     // of the store, or why calls can't be passed to the Keeper; nil: none
	Passing int       // calls that are passed on now
	Passed  uint64    // calls that have been passed on so far, some of them several times
	Waiting int       // calls that wait for a replica that has the line
}

// State returns the State.
func (r *Replica) State() State {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := State{Here: r.isOpen, Apart: r.isApart, Keeper: r.keeper.Address, Since: r.since, Err: r.err, Passed: r.onward, Waiting: r.waiting}
	if s.Err == nil {
		s.Err = r.astray
	}
	for w := range r.ways {
		if w.to != r.id {
			s.Passing++
		}
	}
	return s
}

// Shutdown hands the line on, if this replica has it: no call leaves here any more, and those in line are passed to the next
// replica that has it. So are all that come, until Close. Shutdown returns when the store has what is handed on. It returns an error if
// the lease has ended before, and the error of ctx.
func (r *Replica) Shutdown(ctx context.Context) error {
	r.mu.Lock()
	if !r.isClosing {
		r.isClosing = true
		r.stopLocked() // Calls move when the next replica can have the line.
		if r.isApart {
			r.isApart = false
			r.moveLocked()
		}
		r.handOnLocked()
		r.tellLocked()
	}
	r.mu.Unlock()
	r.askSoon()
	select {
	case <-r.handedOn:
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.notHanded
	case <-r.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close ends the asking, and all that waits: calls that have no line get 503. Without a Shutdown before, the next replica
// begins when the lease has ended. It always returns nil.
func (r *Replica) Close() error {
	r.cancel()
	<-r.done
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isClosing, r.isClosed = true, true
	r.loseLocked()
	r.isApart = false
	r.expiry.Stop()
	r.tellLocked()
	if own, ok := r.transport.(*http.Transport); ok && r.config.Transport == nil {
		own.CloseIdleConnections()
	}
	return nil
}

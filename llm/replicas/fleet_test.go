package replicas_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"example.com/leakybucket/llm"
	"example.com/leakybucket/llm/gateway"
	"example.com/leakybucket/llm/replicas"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
	"example.com/leakybucket/shaper/shared"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A fleet is some replicas with one store, one network and one provider.
type fleet struct {
	t       *testing.T
	store   *buckettest.Memory
	network network
	nodes   []*node
	begun   time.Time

	mu      sync.Mutex
	sent    []sent // in the order in which the provider has got them
	came    []*http.Request
	answers http.HandlerFunc
}

// A sent is a call that the provider has got.
type sent struct {
	call, team string
	at         time.Duration
	by         int // node
}

// A node is a replica with its line and its server.
type node struct {
	*replicas.Replica
	models  gateway.Models
	fleet   *fleet
	number  int
	line    *shaper.Shaper
	limits  shaper.Limits
	server  *http.Server
	store   *pathToStore
	isDead  atomic.Bool
	records []gateway.Record
	parts   []int
	begins  []begin
}

type begin struct {
	at     time.Duration
	handed bool // something was
	full   bool
}

// A pathToStore is the way of one node to the store.
type pathToStore struct {
	shared.Keeper
	isCut atomic.Bool
	asked atomic.Int64
}

var errCut = errors.New("the store is away")

func (p *pathToStore) Keep(ctx context.Context, k shared.Keeping) (shared.Kept, error) {
	p.asked.Add(1)
	if p.isCut.Load() {
		return shared.Kept{}, errCut
	}
	return p.Keeper.Keep(ctx, k)
}

// options of a fleet.
type options struct {
	nodes   int
	quota   llm.Quota
	burst   time.Duration
	depth   int
	teams   int // TeamInFlight
	config  func(*replicas.Config)
	answers http.HandlerFunc
	timeout time.Duration // of the servers
}

// newFleet starts a fleet. Call it within a bubble.
func newFleet(t *testing.T, o options) *fleet {
	t.Helper()
	f := &fleet{t: t, store: buckettest.NewMemory(), begun: time.Now(), answers: o.answers, network: network{at: map[string]*listener{}}}
	if f.answers == nil {
		f.answers = func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") }
	}
	for i := range max(o.nodes, 1) {
		f.start(i, o)
	}
	t.Cleanup(func() {
		for _, n := range f.nodes {
			n.kill()
		}
		time.Sleep(time.Second) // net/http lets a connection linger.
	})
	return f
}

func addressOf(number int) string { return fmt.Sprintf("node-%d:80", number) }

func (f *fleet) start(number int, o options) *node {
	t := f.t
	n := &node{fleet: f, number: number, store: &pathToStore{Keeper: f.store}}
	limits, err := gateway.Limits(o.quota, 1, o.burst, max(o.depth, 1000))
	require.NoError(t, err)
	n.limits = limits
	n.line, err = shaper.New(limits, shaper.WithFairQueue(nil))
	require.NoError(t, err)
	t.Cleanup(func() { _ = n.line.Close() })
	g, err := gateway.New(gateway.Config{
		Provider: "openai", Quota: o.quota, Line: func() *shaper.Shaper { return n.line }, TeamInFlight: o.teams,
		Team: func(r *http.Request) (string, bool) {
			if team, ok := n.TeamOf(r); ok {
				return team, true
			}
			return teamOf(r)
		},
		Leaves: func(w http.ResponseWriter, r *http.Request) error { return n.Leaves(w, r) },
		Record: func(_ *http.Request, r gateway.Record) {
			f.mu.Lock()
			defer f.mu.Unlock()
			n.records = append(n.records, r)
		},
	})
	require.NoError(t, err)
	g.Begin()
	n.models = gateway.Models{{Gateway: g}}
	c := replicas.Config{
		Keeper: n.store, Key: "k", Advertise: addressOf(number), Line: n, Team: teamOf, Wait: func() time.Duration { return 30 * time.Second },
		Transport: replicas.NewTransport(func(ctx context.Context, _, address string) (net.Conn, error) {
			return f.network.dial(ctx, addressOf(number), address)
		}),
		Unavailable: func(w http.ResponseWriter, _ *http.Request, status int, after time.Duration) {
			w.Header().Set("Retry-After", fmt.Sprint(after.Seconds()))
			http.Error(w, "unavailable", status)
		},
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	if o.config != nil {
		o.config(&c)
	}
	n.Replica, err = replicas.New(c)
	require.NoError(t, err)
	handler := n.Wrap(n.models.Wrap(http.HandlerFunc(n.provider)))
	n.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		f.came = append(f.came, r.Clone(context.Background()))
		f.mu.Unlock()
		w.Header().Set("Server", "shaperd") // as a handler in front may
		w.Header().Set(fmt.Sprint("X-Front-", number), "1")
		handler.ServeHTTP(w, r)
	})}
	n.server.ReadTimeout, n.server.WriteTimeout = o.timeout, o.timeout
	l := f.network.listen(c.Advertise)
	go func() { _ = n.server.Serve(l) }()
	for len(f.nodes) <= number {
		f.nodes = append(f.nodes, nil)
	}
	f.nodes[number] = n
	return n
}

// teamOf takes the team from a token, which it removes.
func teamOf(r *http.Request) (team string, ok bool) {
	team = r.Header.Get("Authorization")
	r.Header.Del("Authorization")
	return team, team != ""
}

func (n *node) Save() ([]byte, error)  { return n.models.Save() }
func (n *node) Holds() ([]byte, error) { return n.models.Holds() }

func (n *node) Begin(handed []byte, age time.Duration, full bool) error {
	n.fleet.mu.Lock()
	n.begins = append(n.begins, begin{time.Since(n.fleet.begun), len(handed) > 0, full})
	n.fleet.mu.Unlock()
	return n.models.Begin(handed, age, full)
}

// Part sets the rate and the burst of the line.
func (n *node) Part(parts int) error {
	n.fleet.mu.Lock()
	n.parts = append(n.parts, parts)
	n.fleet.mu.Unlock()
	l := n.limits
	setRate(&l.Rate, float64(l.Rate)/float64(parts))
	l.Burst /= parts
	return n.line.SetLimits(l)
}

// provider is the provider behind a node.
func (n *node) provider(w http.ResponseWriter, r *http.Request) {
	f := n.fleet
	sum := sha256.New()
	_, _ = io.Copy(sum, r.Body)
	r.Header.Set("X-Sum", fmt.Sprintf("%x", sum.Sum(nil)))
	if n.isDead.Load() {
		panic(http.ErrAbortHandler)
	}
	for field := range r.Header {
		if strings.HasPrefix(field, "X-Shaper-Replica") || field == "Authorization" {
			panic("the provider gets the field " + field)
		}
	}
	team, _ := n.TeamOf(r)
	f.mu.Lock()
	f.sent = append(f.sent, sent{r.Header.Get("X-Call"), team, time.Since(f.begun), n.number})
	answers := f.answers
	f.mu.Unlock()
	answers(w, r)
}

// kill ends a node as kill -9 does: its connections break, and it asks the store no more.
func (n *node) kill() {
	if n.isDead.Swap(true) {
		return
	}
	n.store.isCut.Store(true)
	n.fleet.network.cut(addressOf(n.number))
	_ = n.server.Close()
	_ = n.Close()
	synctest.Wait()
}

// A reply is what a caller has got.
type reply struct {
	call    string
	status  int
	body    string
	header  http.Header
	trailer http.Header
	at      time.Duration
	err     error
}

// call calls a node, and returns where the reply will be.
func (f *fleet) call(number int, team, name string, change ...func(*http.Request)) <-chan reply {
	replies := make(chan reply, 1)
	go func() {
		r, err := http.NewRequest(http.MethodPost, "http://"+addressOf(number)+"/v1/chat/completions?x=1&y=;", strings.NewReader(`{"model":"m","max_completion_tokens":1,"messages":[]}`))
		if err != nil {
			panic(err)
		}
		r.Header.Set("Authorization", team)
		r.Header.Set("X-Call", name)
		for _, c := range change {
			c(r)
		}
		client := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return f.network.dial(ctx, "caller", address)
		}}
		got := reply{call: name}
		response, err := client.RoundTrip(r)
		if err == nil {
			var body []byte
			body, err = io.ReadAll(response.Body)
			got.status, got.body, got.header, got.trailer = response.StatusCode, string(body), response.Header, response.Trailer
		}
		got.err, got.at = err, time.Since(f.begun)
		replies <- got
	}()
	return replies
}

// got returns the calls that the provider has got.
func (f *fleet) got() []sent {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.sent)
}

// keeper waits until a node has the line and all know it, and returns it.
func (f *fleet) keeper() (keeper *node) {
	f.t.Helper()
	for range 2000 {
		synctest.Wait()
		known := 0
		for _, n := range f.nodes {
			switch s := n.State(); {
			case n.isDead.Load():
				known++
			case s.Here:
				keeper = n
				known++
			case keeper != nil && s.Keeper == keeper.State().Keeper && keeper.State().Here:
				known++
			}
		}
		if known == len(f.nodes) {
			return keeper
		}
		time.Sleep(5 * time.Millisecond)
	}
	f.t.Fatal("nobody has the line")
	return nil
}

// others returns the nodes that live, without one.
func (f *fleet) others(but *node) (others []*node) {
	for _, n := range f.nodes {
		if n != but && !n.isDead.Load() {
			others = append(others, n)
		}
	}
	return others
}

// once checks that no call was sent twice.
func (f *fleet) once() {
	f.t.Helper()
	seen := map[string]sent{}
	for _, s := range f.got() {
		before, isTwice := seen[s.call]
		require.Falsef(f.t, isTwice, "sent twice: %+v and %+v", before, s)
		seen[s.call] = s
	}
}

// A network has the connections of a fleet, in memory.
type network struct {
	mu    sync.Mutex
	at    map[string]*listener
	conns []*conn
}

type listener struct {
	address string
	conns   chan net.Conn
	closed  chan struct{}
	once    sync.Once
}

// A conn is one end of a connection.
type conn struct {
	net.Conn
	from, to string
}

func (n *network) listen(address string) *listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := &listener{address: address, conns: make(chan net.Conn), closed: make(chan struct{})}
	n.at[address] = l
	return l
}

func (n *network) dial(ctx context.Context, from, to string) (net.Conn, error) {
	n.mu.Lock()
	l := n.at[to]
	n.mu.Unlock()
	if l == nil {
		return nil, errors.New("connection refused")
	}
	here, there := net.Pipe()
	select {
	case l.conns <- there:
	case <-l.closed:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns = append(n.conns, &conn{here, from, to}, &conn{there, from, to})
	return here, nil
}

// cut breaks all connections of a node.
func (n *network) cut(address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.conns {
		if c.from == address || c.to == address {
			_ = c.Close()
		}
	}
	delete(n.at, address)
}

// breaks breaks the connections from one address to another.
func (n *network) breaks(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.conns {
		if c.from == from && c.to == to {
			_ = c.Close()
		}
	}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *listener) Addr() net.Addr { return addr(l.address) }

type addr string

func (addr) Network() string  { return "memory" }
func (a addr) String() string { return string(a) }

// setRate sets a rate, whose type is x/time's.
func setRate[R ~float64](to *R, n float64) { *to = R(n) }

// lastCame returns the request that has come last to a server.
func (f *fleet) lastCame() *http.Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.came[len(f.came)-1]
}

// away cuts all nodes off from the store, or ends that.
func (f *fleet) away(isAway bool) {
	for _, n := range f.nodes {
		n.store.isCut.Store(isAway)
	}
}

// asked returns how often the store has been asked.
func (f *fleet) asked() (n int64) {
	for _, node := range f.nodes {
		n += node.store.asked.Load()
	}
	return n
}

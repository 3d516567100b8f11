package sharedfaults_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/llm"
	"example.com/leakybucket/llm/gateway"
	"example.com/leakybucket/llm/llmtest"
	"example.com/leakybucket/llm/replicas"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/shared"
)

// The provider's minute is scaled, 1 : 10: it lasts 6 s, so that ten minutes pass in one. The leases of replicas and all other times
// are real, as they are promised in seconds. So a death costs ten times the share of the quota that it costs in production.
const (
	scale     = 10
	perSecond = 50
	perMinute = perSecond * 60 / scale // calls, of a scaled minute
	tokens    = 100                    // of a call
	burst     = 48 * time.Second / scale
	answering = 200 * time.Millisecond // is how long the provider takes for a call

	gateways = 3
	callers  = 200
	teams    = 10
)

// providerQuota is the quota of a scaled minute. Tokens are a second level, which is nearly as full.
var providerQuota = llm.Quota{Requests: perMinute, Tokens: perMinute * tokens * 11 / 10}

// gatewayQuota is the same of a minute.
var gatewayQuota = llm.Quota{Requests: providerQuota.Requests * scale, Tokens: providerQuota.Tokens * scale}

// shareOf returns the share of a team: two of them have two.
func shareOf(team string) int {
	if team == "team-8" || team == "team-9" {
		return 2
	}
	return 1
}

// shares is the sum of the shares of all teams.
const shares = teams + 2

// gatewayVariable has the gatewayPlan of a process as JSON. A process that has it is a gateway.
const gatewayVariable = "SHAREDFAULTS_GATEWAY"

// A gatewayPlan is what a gateway needs to know.
type gatewayPlan struct {
	Store     string // as plan.Addr
	Advertise string // where it listens
	Upstream  string // the URL of the provider
	Log       string // the file that it writes
	Fallback  int
}

// A sending is a call in a gateway's line.
type sending struct {
	call string
	at   time.Time // when it left the line
}

type sendingKey struct{}

// serveGateway is the main function of a gateway: what shaperd llm does, without Caddy.
func serveGateway(text string) {
	var p gatewayPlan
	must(json.Unmarshal([]byte(text), &p))
	file, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	must(err)
	store, closeStore, err := openBucket(plan{Addr: p.Store})
	must(err)
	upstream, err := url.Parse(p.Upstream)
	must(err)

	epoch, wall := sameInstant()
	// One write for each: a gateway that is killed has written all that it has done.
	write := func(what outcome, s *sending) {
		_, err := fmt.Fprintf(file, "%c %d %s\n", what, wall+int64(s.at.Sub(epoch)), s.call)
		must(err)
	}
	limits, meters, err := gateway.Levels("openai", gatewayQuota, burst, 2*callers) // Those whose callers have gone may still be there.
	must(err)
	line, err := shaper.New(limits, shaper.WithMeters(meters...), shaper.WithFairQueue(shareOf), shaper.WithTrace(&shaper.Trace{
		Departed: func(ctx context.Context, e shaper.Event) {
			s := ctx.Value(sendingKey{}).(*sending)
			s.at = e.At
			write(departed, s)
		},
	}))
	must(err)
	var r *replicas.Replica
	g, err := gateway.New(gateway.Config{
		Provider: "openai", Quota: gatewayQuota, Line: func() *shaper.Shaper { return line }, Weight: shareOf,
		Team:   func(req *http.Request) (string, bool) { return r.TeamOf(req) },
		Leaves: func(w http.ResponseWriter, req *http.Request) error { return r.Leaves(w, req) },
	})
	must(err)
	g.Begin()
	models := gateway.Models{{Gateway: g}}
	r, err = replicas.New(replicas.Config{
		Keeper: store.(shared.Keeper), Key: "key", Advertise: p.Advertise, Line: parted{models, line, limits, meters}, Team: takeTeam,
		Fallback: p.Fallback, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)), Wait: func() time.Duration { return patience },
	})
	must(err)
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(p *httputil.ProxyRequest) { p.SetURL(upstream) },
		Transport: &http.Transport{MaxIdleConnsPerHost: callers}, ErrorLog: stdlog.New(io.Discard, "", 0),
	}
	calls := r.Wrap(models.Wrap(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		write(sent, req.Context().Value(sendingKey{}).(*sending))
		proxy.ServeHTTP(w, req)
	})))
	server := &http.Server{Addr: p.Advertise, Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/state" {
			must(json.NewEncoder(w).Encode(r.State()))
			return
		}
		calls.ServeHTTP(w, req.WithContext(context.WithValue(req.Context(), sendingKey{}, &sending{call: req.Header.Get(callField)})))
	})}

	term := make(chan os.Signal, 1) // one is enough
	signal.Notify(term, syscall.SIGTERM)
	ended := make(chan struct{})
	go func() {
		<-term
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := r.Shutdown(ctx); err != nil { // The store may be away.
			fmt.Fprintln(os.Stderr, err)
		}
		must(server.Shutdown(ctx))
		must(r.Close())
		must(line.Close())
		closeStore()
		close(ended)
	}()
	if err := server.ListenAndServe(); err != http.ErrServerClosed {
		must(err)
	}
	<-ended
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// parted is a line of which each replica may have a part.
type parted struct {
	gateway.Models
	line   *shaper.Shaper
	limits shaper.Limits
	meters []shaper.Meter
}

func (p parted) Part(n int) error {
	l, meters := p.limits, slices.Clone(p.meters)
	l.Rate /= rate.Limit(n)
	l.Burst /= n
	for i := range meters {
		meters[i].Rate /= rate.Limit(n)
		meters[i].Burst /= n
	}
	var err error
	if n > 1 {
		err = p.Empty()
	}
	return errors.Join(err, p.line.SetLimits(l), p.line.SetMeters(meters...))
}

// callField has the name of a call, which no other has. It begins with the name of the team.
const callField = "X-Call"

// takeTeam takes the team from a token, which the provider does not get.
func takeTeam(r *http.Request) (team string, ok bool) {
	team = strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	r.Header.Del("Authorization")
	return team, team != ""
}

// gatewayFleet is three gateways that have one line, with their callers and their provider.
type gatewayFleet struct {
	t        *testing.T
	provider *recorder
	upstream *httptest.Server
	links    [gateways]*servers.Proxy // to the store
	storeAt  func(link *servers.Proxy) string
	members  [gateways]*servers.Process
	address  [gateways]string
	log      [gateways]string // that each writes now
	logs     []string         // all of them
	fallback int
	client   *http.Client       // of all callers
	hangUp   context.CancelFunc // ends them
	calling  sync.WaitGroup

	begun, end time.Time // of what is judged
	again      []again

	mu      sync.Mutex
	ended   map[string]int       // the status of each call; 0: its connection broke
	gone    map[string]time.Time // when a caller went away who did not wait for the end of a call
	strange []string             // other responses than 200 and 502
}

// startGateways starts three gateways with a store at an address. The first of them has the line.
func startGateways(t *testing.T, s store, first, fallback int) *gatewayFleet {
	t.Helper()
	f := &gatewayFleet{
		t: t, provider: &recorder{arrived: map[string][]time.Time{}}, storeAt: s.at, fallback: fallback,
		ended: map[string]int{}, gone: map[string]time.Time{},
	}
	f.provider.Server = llmtest.New(llmtest.Config{
		Dialect: llmtest.OpenAI, Quota: providerQuota, Minute: time.Minute / scale,
		Answer: func(llmtest.Call) llmtest.Answer {
			return llmtest.Answer{Output: tokens, First: answering / 2, Took: answering}
		},
	})
	f.upstream = httptest.NewServer(f.provider)
	t.Cleanup(f.upstream.Close)
	f.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: callers}}
	t.Cleanup(f.client.CloseIdleConnections)
	wasKept(t, s.addr)
	for i := range gateways {
		f.links[i] = servers.StartProxy(t, s.server)
		f.address[i] = fmt.Sprintf("127.0.0.1:%d", servers.FreePort(t))
	}
	for i := range gateways {
		f.start((first + i) % gateways)
		if i == 0 {
			f.members[first].Until(func() bool { return f.keeper() == first }, "the first gateway has the line")
		}
	}
	return f
}

// wasKept lets another process have kept the key before. In a store without a state the first who comes waits for a lease that
// the store may have lost.
func wasKept(t *testing.T, addr string) {
	t.Helper()
	b, closeBucket, err := openBucket(plan{Addr: addr})
	require.NoError(t, err)
	defer closeBucket()
	for _, lease := range []time.Duration{time.Second, 0} {
		_, err = b.(shared.Keeper).Keep(t.Context(), shared.Keeping{Key: "key", ID: "before", Lease: lease, Value: []byte("{}")})
		require.NoError(t, err)
	}
}

// start starts a gateway, or starts it again.
func (f *gatewayFleet) start(i int) {
	f.t.Helper()
	f.log[i] = filepath.Join(f.t.TempDir(), fmt.Sprint(len(f.logs)))
	f.logs = append(f.logs, f.log[i])
	text, err := json.Marshal(gatewayPlan{Store: f.storeAt(f.links[i]), Advertise: f.address[i], Upstream: f.upstream.URL, Log: f.log[i], Fallback: f.fallback})
	require.NoError(f.t, err)
	own, err := os.Executable()
	require.NoError(f.t, err)
	command := exec.Command(own)
	command.Env = append(os.Environ(), gatewayVariable+"="+string(text))
	f.members[i] = servers.Listening(f.t, f.address[i], command)
}

// keeper returns which gateway has the line, -1 if none has.
func (f *gatewayFleet) keeper() int {
	for i := range gateways {
		ctx, cancel := context.WithTimeout(f.t.Context(), time.Second)
		var state struct{ Here bool }
		if r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+f.address[i]+"/state", nil); err == nil {
			if response, err := f.client.Do(r); err == nil {
				_ = json.NewDecoder(response.Body).Decode(&state)
				response.Body.Close()
			}
		}
		if cancel(); state.Here {
			return i
		}
	}
	return -1
}

// calls lets the callers begin. Of each team 16 of 20 callers are at the first gateway, and 2 at each of the others.
func (f *gatewayFleet) calls() {
	ctx, cancel := context.WithCancel(f.t.Context())
	f.hangUp = cancel
	f.t.Cleanup(cancel)
	for i := range callers {
		c := caller{f, fmt.Sprint("team-", i%teams), i / teams}
		f.calling.Go(func() { c.run(ctx) })
	}
}

// A caller makes one call after the other.
type caller struct {
	*gatewayFleet
	team string
	seat int // of 20
}

// run calls the gateway at home. Where a connection breaks it calls anew, at the next gateway. Some callers go away after a while.
func (c caller) run(ctx context.Context) {
	home := max(0, c.seat-14) / 2
	for n, at := 0, home; ctx.Err() == nil; n++ {
		call := fmt.Sprint(c.team, "/", c.seat, "/", n)
		within, cancel := context.WithCancel(ctx)
		if c.seat == 3 || c.seat >= 16 && c.seat%2 == 1 {
			time.AfterFunc(time.Duration(200+1700*n%4000)*time.Millisecond, cancel)
		}
		status, err := c.call(within, call, c.address[at])
		isGone := within.Err() != nil
		if cancel(); ctx.Err() != nil {
			return
		}
		c.mu.Lock()
		switch {
		case isGone:
			c.gone[call] = time.Now()
		case err == nil && status != http.StatusOK && status != http.StatusBadGateway:
			c.strange = append(c.strange, fmt.Sprint(call, ": status ", status))
			fallthrough
		default:
			c.ended[call] = status
		}
		c.mu.Unlock()
		if at = home; err != nil && !isGone {
			at = (home + 1 + n%(gateways-1)) % gateways
		}
	}
}

// call returns the status of a call: a plain one, or a stream.
func (c caller) call(ctx context.Context, call, address string) (status int, err error) {
	asked := llmtest.Call{Input: tokens / 4, Most: tokens, Stream: c.seat%2 == 0}
	r := llmtest.NewRequest(ctx, llmtest.OpenAI, asked)
	r.URL.Host, r.Host = address, ""
	r.Header.Set("Authorization", "Bearer "+c.team)
	r.Header.Set(callField, call)
	response, err := c.client.Do(r)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	isWhole := strings.Count(string(text), "word") == tokens && strings.HasSuffix(string(text), "[DONE]\n\n") == asked.Stream
	if response.StatusCode == http.StatusOK && !isWhole {
		return 0, c.noteBroken(call)
	}
	return response.StatusCode, nil
}

// noteBroken notes an answer that ends early, and does not say so.
func (f *gatewayFleet) noteBroken(call string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.strange = append(f.strange, call+": an answer that is not whole")
	return io.ErrUnexpectedEOF
}

// A recorder is the provider, and notes each call that comes.
type recorder struct {
	*llmtest.Server

	mu      sync.Mutex
	arrived map[string][]time.Time
}

func (p *recorder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	call := r.Header.Get(callField)
	p.mu.Lock()
	p.arrived[call] = append(p.arrived[call], time.Now())
	p.mu.Unlock()
	p.Server.ServeHTTP(w, r)
}

// sent is the outcome of a call that has left the line, and is passed to the provider now.
const sent outcome = 'S'

// A leaving is what a gateway has written of a call.
type leaving struct {
	what outcome
	at   time.Time // when it left the line
	call string
}

// leavings returns what is written in a log of a gateway.
func leavings(t *testing.T, file string) (all []leaving) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	for line := range bytes.Lines(text[:bytes.LastIndexByte(text, '\n')+1]) {
		var l leaving
		var at int64
		_, err := fmt.Sscanf(string(line), "%c %d %s\n", &l.what, &at, &l.call)
		require.NoError(t, err, "the line %q", line)
		l.at = time.Unix(0, at)
		all = append(all, l)
	}
	return all
}

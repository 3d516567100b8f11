package main

import (
	"cmp"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"example.com/leakybucket/shaper"
)

// clientQuery is the query parameter in which a simulated client says who it is. Real
// clients prove it, for example with an API key.
const clientQuery = "client"

// The simulated clients, and the routes that they ask for. Those in front come more
// often.
var (
	clientNames = []string{"ana", "ben", "chen", "dora", "emil", "fatou", "goran", "hana", "ivan", "june", "kofi", "lena"}
	routes      = []string{"message_send", "search", "login"}
)

// pickClient returns a route and a client at random.
func pickClient() (route, client string) {
	pick := func(names []string) string {
		skewed := rand.Float64() * rand.Float64()
		return names[int(skewed*float64(len(names)))]
	}
	return pick(routes), pick(clientNames)
}

// pathOf returns the path and query of a client's request.
func pathOf(route, client string) string {
	return "/" + route + "?" + url.Values{clientQuery: {client}}.Encode()
}

// keyOf returns the key of a request in the group of clients: its route and its
// client, or its address if it does not say who it is.
func keyOf(r *http.Request) (string, error) {
	route, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	return shaper.By(
		func(*http.Request) (string, error) { return cmp.Or(route, "other"), nil },
		func(r *http.Request) (string, error) {
			if name := r.URL.Query().Get(clientQuery); name != "" {
				return name, nil
			}
			return shaper.ByClientIP()(r)
		},
	)(r)
}

// The dryRuns are limits that are only tried: they see each request that comes to the proxy,
// delay and refuse none, and show what they would have done.
type dryRuns struct {
	candidate *shaper.Shaper        // other limits for all requests together
	clients   *shaper.Group[string] // a bucket for each client and route

	mu     sync.Mutex
	before candidateState // what the candidate had counted when its limits were set
}

// newDryRuns returns the dry runs beside a proxy with limits l. The caller must close
// them.
func newDryRuns(l shaper.Limits) (*dryRuns, error) {
	tighter, err := candidateFor(l)
	if err != nil {
		return nil, err
	}
	candidate, err := shaper.New(tighter, shaper.WithName("candidate"), shaper.WithDryRun())
	if err != nil {
		return nil, err
	}
	// Whoever writes the query can make up clients: their number is bounded.
	clients, err := shaper.NewGroup(clientLimits, shaper.WithName("clients"), shaper.WithDryRun(), shaper.WithMaxKeys(1000))
	return &dryRuns{candidate: candidate, clients: clients}, err
}

// candidateFor returns tighter limits than l: half of its rate and of its line. A cap
// on requests in flight is not part of a dry run.
func candidateFor(l shaper.Limits) (shaper.Limits, error) {
	l.InFlight = 0
	if newLimitsInfo(l).unlimited {
		return shaper.ParseLimits(defaultLimits)
	}
	half := l
	half.Rate, half.Depth = l.Rate/2, l.Depth/2
	if half.Validate() != nil {
		return l, nil // There is no slower rate.
	}
	return half, nil
}

// clientLimits returns the limits of a client on a route: a login may come seldom, as
// it costs the upstream most.
func clientLimits(key string) (shaper.Limits, error) {
	if strings.HasPrefix(key, "login/") {
		return shaper.ParseLimits("1 per 5s burst 3")
	}
	return shaper.ParseLimits("2/s burst 5 depth 10")
}

// middleware returns what shows each request of the proxy to the dry runs.
func (d *dryRuns) middleware() []func(http.Handler) http.Handler {
	return []func(http.Handler) http.Handler{
		shaper.Middleware(d.candidate, shaper.WithCost(costOf)),
		d.clients.Middleware(keyOf, shaper.WithCost(costOf)),
	}
}

// try sets the limits of the candidate.
func (d *dryRuns) try(l shaper.Limits) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.candidate.SetLimits(l); err != nil {
		return err
	}
	d.before = countsOf(d.candidate)
	return nil
}

// state returns what the limits of the candidate would have done since they were set.
func (d *dryRuns) state() candidateState {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := countsOf(d.candidate)
	s.Seen -= d.before.Seen
	s.Refused -= d.before.Refused
	return s
}

// countsOf returns the limits of a dry run and what it has counted. A request that would
// have to wait has been seen too.
func countsOf(s *shaper.Shaper) candidateState {
	now := s.Stats()
	return candidateState{Limits: now.Limits.String(), Seen: now.Departed + now.Refused + uint64(now.Waiting), Refused: now.Refused}
}

func (d *dryRuns) close() {
	_ = d.candidate.Close()
	_ = d.clients.Close()
}

package gateway

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"example.com/leakybucket/llm"
	"example.com/leakybucket/shaper"
)

// A Config has the settings of a [Gateway].
type Config struct {
	Provider string    // one of Providers
	Quota    llm.Quota // of a minute

	// Estimate says what a call reserves: learned, what the calls of its team and model have taken ([llm.Estimates]); asked, the
	// most that it asks for; or a number of tokens for each answer. "" means asked. [DefaultEstimate] returns what suits a
	// provider.
	Estimate string

	// Unasked is what a call asks for that does not bound its answer; 0 means that nothing is known.
	Unasked int

	// OutputFactor is how many tokens bedrock counts for a token of output; 0: by the model.
	OutputFactor int

	// Line returns the line in which calls wait, with fair queueing ([shaper.WithFairQueue]), and the limits and meters of
	// [Levels], or the limits of [Limits].
	// It is called each time that the line is needed. A call settles in the line that it has left.
	Line func() *shaper.Shaper

	// TeamInFlight is how many calls of a team may be in the line or with the provider at a time; 0: any number. Further ones wait
	// outside the line, for as long as one may, and hold up no other team.
	TeamInFlight int

	// Scale is the number of cost units of the line in a millionth of a minute's quota; 0 means 1. If the quota of a line
	// changes while calls wait with costs by the quota before, a changed Scale re-times them too. The function [Scale]
	// returns it.
	Scale float64

	// Team returns the team of a call, which is its key in the line; nil: all calls have one. If ok is false, the call is
	// refused with status 401.
	Team func(*http.Request) (team string, ok bool)

	// Bodies bounds the bytes that the calls of the line hold of their bodies, until their responses begin; 0 means
	// DefaultBodies. A call that finds no room is estimated by its length until it has passed, and not sent again; with several Models it is
	// refused with status 503 if its body alone says the model. A body that has been coming for a second makes room for
	// others: its call is refused likewise.
	Bodies int64

	// BodyTimeout is how long the first MiB of a body may take to come, before its call is refused with status 408; 0 means
	// DefaultBodyTimeout. A shorter ReadTimeout of the server counts.
	BodyTimeout time.Duration

	Weight func(team string) int // the share of a team, which the Ledger tells; nil: 1 for all
	Labels int                   // how many teams have a label of their own in Ledger.Totals
	Ledger *Ledger               // nil: the Gateway makes one
	Log    *slog.Logger          // for faults of responses; nil: nothing is logged

	// Record, if it is not nil, is called when a call has ended, with the request as it came.
	Record func(*http.Request, Record)

	// Refusals is for refusals and callers that have gone ([shaper.WithLogger]); nil: nothing is logged.
	Refusals *slog.Logger

	// RetrySpread bounds a random time that is added to Retry-After of a refused call.
	RetrySpread time.Duration

	// Refuse responds to a call that was not admitted, and may call [Gateway.WriteError]. nil means WriteError.
	Refuse func(http.ResponseWriter, *http.Request, error)

	// Leaves, if it is not nil, is called each time right before a call is sent to the provider. After an error the call is not sent,
	// it costs nothing, and its handler returns without a response: it has moved to another process, as a call has that is in line
	// when its context ends with a cause that has a method Moved. A call that has moved is neither recorded nor logged.
	Leaves func(http.ResponseWriter, *http.Request) error
}

// A Gateway lets calls wait within the quota of their provider, by their actual usage. [New] makes one, and [Gateway.Wrap]
// puts it in front of a handler. It is safe for concurrent use.
//
// A caller gets the provider's response: it passes byte for byte and is flushed as it comes, upgrades pass, and
// Server-Timing says how long the call has waited. Only the provider's rate-limit headers are replaced by ones of the
// gateway's bucket. A caller that leaves while its call waits frees the place. Connections and timeouts are as in
// [shaper.Middleware]. Over HTTP/1 a caller that has gone is not noticed while part of its body is unread, which is the
// case for bodies above 1 MiB.
//
// When the provider responds with 429, all calls wait for as long as it asks, or a second if it does not say. The call
// itself is sent once more, at the head of its team's line, if its body was at most 1 MiB and is still kept
// ([Config].Bodies). The second response is passed on whatever it is. A 503 or 529 that names a time is treated alike;
// without one it is passed on. A refusal after which the call is sent again costs nothing. One that no wait cures, or for longer
// than a call may wait ([shaper.Limits].MaxWait), is passed on at once, and holds nothing. One in an event of a stream is
// passed on as it comes; it holds the line if it names a time, and costs nothing.
//
// If no model has run, by the status of a response, what was reserved for the answer comes back. If any other response reports no
// usage, breaks off or does not come, the estimate stands. The log says so, for each reason in at most one line a minute. Only
// a request that makes a model run is charged tokens. The preflight of a browser neither waits nor needs a team.
type Gateway struct {
	config  Config
	dialect dialect
	levels  *llm.Levels
	faults  faultLog
}

// New returns a Gateway, or an error that names a wrong setting of the Config.
func New(c Config) (*Gateway, error) {
	d, ok := dialects[c.Provider]
	if !ok {
		return nil, fmt.Errorf("gateway: the provider %q is unknown, must be one of %s", c.Provider, strings.Join(Providers(), ", "))
	}
	if err := c.Quota.Validate(0); err != nil {
		return nil, err
	}
	if c.Line == nil {
		return nil, errors.New("gateway: Config.Line is nil")
	}
	if c.Scale == 0 {
		c.Scale = 1
	}
	if !isScale(c.Scale) {
		return nil, fmt.Errorf("gateway: Config.Scale is %v, must be a number above 0", c.Scale)
	}
	switch {
	case c.Bodies < 0:
		return nil, fmt.Errorf("gateway: Config.Bodies is %d, must not be negative", c.Bodies)
	case c.BodyTimeout < 0:
		return nil, fmt.Errorf("gateway: Config.BodyTimeout is %v, must not be negative", c.BodyTimeout)
	case c.TeamInFlight < 0:
		return nil, fmt.Errorf("gateway: Config.TeamInFlight is %d, must not be negative", c.TeamInFlight)
	case c.Unasked < 0:
		return nil, fmt.Errorf("gateway: Config.Unasked is %d, must not be negative", c.Unasked)
	case c.OutputFactor < 0:
		return nil, fmt.Errorf("gateway: Config.OutputFactor is %d, must not be negative", c.OutputFactor)
	}
	c.Bodies, c.BodyTimeout = cmp.Or(c.Bodies, DefaultBodies), cmp.Or(c.BodyTimeout, DefaultBodyTimeout)
	if c.Ledger == nil {
		c.Ledger = NewLedger()
	}
	levels, err := c.levels(d)
	if err != nil {
		return nil, err
	}
	g := &Gateway{config: c, dialect: d, levels: levels, faults: faultLog{log: c.Log, last: map[string]faults{}}}
	if c.Refuse == nil {
		g.config.Refuse = g.WriteError
	}
	if c.Refusals != nil {
		g.config.Refusals = slog.New(ofThoseHere{c.Refusals.Handler()})
	}
	return g, nil
}

// Begin makes this Gateway the subject of its Ledger. It is not part of New, so that a configuration that fails changes
// nothing.
func (g *Gateway) Begin() {
	c := g.config
	seats := shaper.Limits{Rate: math.MaxFloat64, InFlight: c.TeamInFlight} // That is rate.Inf of x/time.
	if c.TeamInFlight > 0 {
		line := c.Line().Limits()
		seats.Depth, seats.MaxWait = line.Depth, line.MaxWait
	}
	c.Ledger.follow(subject{c.Provider, c.Quota, g.minute(), c.Line, c.Weight, c.Labels, seats})
	if c.TeamInFlight > 0 {
		c.Ledger.seatsOf().Reload() // Also for those that wait.
	}
	c.Ledger.bodies.allow(c.Bodies)
}

// Ledger returns the Ledger in which the Gateway counts.
func (g *Gateway) Ledger() *Ledger { return g.config.Ledger }

// millionths is the number of package llm's cost units in a minute's quota.
const millionths = 1_000_000

// minute returns the number of cost units in a minute's quota.
func (g *Gateway) minute() float64 { return millionths * g.config.Scale }

// scaled returns a number of millionths in cost units. A negative one stays as it is.
func (g *Gateway) scaled(n int, round func(float64) float64) int {
	if n < 0 {
		return n
	}
	return int(round(min(float64(n)*g.config.Scale, math.MaxInt32)))
}

// Wrap returns the gateway in front of a handler that passes calls to the provider, such as a reverse proxy. The handler
// must be ready to serve a request a second time, which is restored before.
func (g *Gateway) Wrap(next http.Handler) http.Handler { return Models{{Gateway: g}}.Wrap(next) }

// inLine returns the line of the gateway in front of a handler.
func (g *Gateway) inLine(next http.Handler) func() *inLine {
	options := []shaper.MiddlewareOption{
		shaper.WithKey(teamOf), shaper.WithReserve(), shaper.WithErrorHandler(g.refuse), shaper.WithLogger(g.config.Refusals),
		shaper.WithCosts(func(r *http.Request) []int { return callOf(r.Context()).costs() }),
	}
	if g.config.TeamInFlight > 0 {
		options = append(options, shaper.WithWaitField(restOfWait))
	}
	passOn := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Del(restOfWait)
		callOf(r.Context()).serve(w, r, next)
	})
	var latest atomic.Pointer[inLine] // A reload may change the line.
	return func() *inLine {
		line := g.config.Line()
		if l := latest.Load(); l != nil && l.line == line {
			return l
		}
		l := &inLine{line, shaper.Middleware(line, options...)(passOn)}
		latest.Store(l)
		return l
	}
}

// An inLine is a line in front of a handler.
type inLine struct {
	line *shaper.Shaper
	http.Handler
}

// A call is one call on its way. It belongs to the goroutine of its request.
type call struct {
	models  Models
	g       *Gateway      // of its model; the first, until that is known
	request *http.Request // as it came
	arrived time.Time
	team    string
	model   string
	metered *llm.Call      // nil: the body has not been read
	line    *shaper.Shaper // in which the call is, or that it has left
	body    *body
	isWhole bool // all of the body has come

	entered time.Time // the line
	waited  time.Duration
	left    time.Time // when it left the line for the last time
	isSent  bool      // to the provider
	isMoved bool      // to another process, right before it was sent
	retried bool

	status   int
	spread   time.Duration // of its Retry-After, and a nanosecond; 0: not drawn yet
	reported *llm.Usage
}

type callKey struct{}

// teamOf is the [shaper.KeyFunc] of a line.
func teamOf(r *http.Request) (string, error) { return callOf(r.Context()).team, nil }

func callOf(ctx context.Context) *call { return ctx.Value(callKey{}).(*call) }

// read finds the team and the estimate of the call.
func (c *call) read(w http.ResponseWriter, r *http.Request) (err error) {
	if c.g.config.Team != nil {
		team, ok := c.g.config.Team(r)
		if !ok {
			return errNoToken
		}
		c.team = team
	}
	head, rest := []byte{}, io.ReadCloser(nil)
	hasBody := r.Body != nil && r.Body != http.NoBody
	if c.isWhole = !hasBody; hasBody {
		if head, c.isWhole, err = c.body.read(w, r, c.g.config.BodyTimeout); err != nil {
			return err
		}
	}
	if c.model = llm.Model(r); c.model == "" && c.body.hadNoRoom && len(c.models) > 1 {
		return errNoModel // In the line of another model it would take the quota of that, and miss its own.
	}
	if c.g, err = c.models.of(c.model, r); err != nil {
		return err
	}
	if c.metered, err = c.g.levels.Call(c.team, c.model, r); err != nil {
		return err
	}
	switch {
	case c.isWhole && hasBody:
		c.body.keep(head)
	case hasBody:
		rest = llm.Rest(r)
		if c.body.hadNoRoom {
			c.g.faults.note("there is no room for the bodies of calls, which are estimated by their length", 0)
		}
	}
	if hasBody {
		r.Body = &sending{of: c.body, text: head, rest: rest}
	}
	onlyGzip(r.Header)
	return nil
}

// onlyGzip leaves the provider no other encoding than gzip, so that the usage can be read.
func onlyGzip(h http.Header) {
	accepted := strings.Join(h.Values("Accept-Encoding"), ",")
	if accepted == "" {
		return
	}
	h.Set("Accept-Encoding", "identity")
	for coding := range strings.SplitSeq(accepted, ",") {
		name, weight, _ := strings.Cut(coding, ";")
		q, err := strconv.ParseFloat(strings.TrimPrefix(strings.ToLower(strings.TrimSpace(weight)), "q="), 64)
		if strings.EqualFold(strings.TrimSpace(name), "gzip") && (err != nil || q > 0) { // Without a weight it is 1.
			h.Set("Accept-Encoding", "gzip")
		}
	}
}

// serve passes the call to the provider, and once more if that has refused it.
func (c *call) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	// Handlers around the gateway look at the request that they have made, so the handlers behind it get no other.
	own := r
	*c.request = *own
	r = c.request
	defer func() { *own = *r }()
	if err := r.Context().Err(); err == context.Canceled { // The caller has gone as the call left.
		c.settleFree(r)
		shaper.WriteError(w, r, err)
		return
	}
	if !c.leaves(w, r) {
		c.settleFree(r)
		return
	}
	s := &sender{call: c, w: w, r: r, next: next, header: w.Header().Clone(), restart: func() {}}
	c.departs(c.entered)
	c.isSent = true
	out := r.WithContext(r.Context())
	out.GetBody = nil
	if c.isWhole {
		s.first = r.Clone(r.Context())
		out.GetBody = s.bodyAgain
	}
	// The Middleware has reserved for the first attempt.
	transport := shaper.Transport{Limiter: c.line, Key: teamOf, Base: s, HoldFor: s.holdFor, MaxHold: longestHold, Retry: true}
	_, err := transport.RoundTrip(out)
	s.restart()
	a := s.last
	if a.captured != nil {
		c.waited += time.Since(s.refused) // It has been in line again, and has not left.
	}
	switch {
	case c.isMoved:
		c.settleFree(r)
		s.restore()
	case a.captured == nil:
	case err != nil && r.Context().Err() == context.Canceled: // The caller has gone while the call waited again.
		a.endRefused(r)
		s.restore()
		c.left, c.status = time.Time{}, StatusGone
		shaper.WriteError(w, r, context.Canceled) // Silence would be an empty response with status 200.
	default:
		a.endRefused(r)
		a.passOn(int64(a.captured.Len()))
	}
}

// costs returns what the call reserves in its line.
func (c *call) costs() []int { return c.inUnits(c.metered.Costs(c.line)) }

// actual returns what the call settles with.
func (c *call) actual() []int { return c.inUnits(c.metered.Actual(c.line)) }

// inUnits returns the costs in the units of the line.
func (c *call) inUnits(costs []int) []int {
	if len(costs) == 1 {
		costs[0] = c.g.scaled(costs[0], math.Ceil)
	}
	return costs
}

// settleFree settles a call that costs nothing.
func (c *call) settleFree(r *http.Request) { shaper.Settle(r, make([]int, 1+len(c.line.Meters()))...) }

// hasWaited notes how long the call has been in line, if it ends there.
func (c *call) hasWaited() {
	if !c.entered.IsZero() && !c.isSent {
		c.waited = time.Since(c.entered)
	}
}

// departs notes that the call leaves the line now, in which it has been since an instant.
func (c *call) departs(since time.Time) {
	c.left = time.Now()
	c.waited += c.left.Sub(since)
	c.g.config.Ledger.departed(c.team, c.waited, c.left)
}

// A sender is the Base of the [shaper.Transport] of one call. It lets the handler behind the gateway serve the attempts. A
// response that passes does so meanwhile, so the Transport sees only its status.
type sender struct {
	*call
	w      http.ResponseWriter
	r      *http.Request
	next   http.Handler
	header http.Header   // of w before the first attempt
	first  *http.Request // a copy of r from then; nil: the call can't be sent again

	last    *attempt
	refused time.Time
	restart func() // of the server's WriteTimeout
}

func (s *sender) RoundTrip(out *http.Request) (*http.Response, error) {
	if s.last != nil {
		if !s.leaves(s.w, s.r) {
			return nil, errMoved
		}
		s.restart()
		s.restart = func() {} // The handler may hijack the connection now.
		s.restore()
		s.departs(s.refused)
		s.retried, s.reported = true, nil
		body := out.Body
		*s.r = *s.first
		s.r.Body = body
	}
	s.last = s.try(s.w, s.r, s.next)
	a := s.last
	if a.captured == nil {
		return &http.Response{StatusCode: max(a.status, http.StatusOK), Body: http.NoBody}, nil
	}
	s.refused, s.restart = time.Now(), suspendWriteTimeout(s.w, s.r)
	return &http.Response{StatusCode: a.status, Header: a.Header(), Body: io.NopCloser(bytes.NewReader(a.captured.Bytes()))}, nil
}

// restore restores the header of the response.
func (s *sender) restore() {
	clear(s.w.Header())
	maps.Copy(s.w.Header(), s.header)
}

// bodyAgain returns the body of the call for a second attempt.
func (s *sender) bodyAgain() (io.ReadCloser, error) {
	text := s.body.take()
	if text == nil {
		return nil, errNoRoom
	}
	return &sending{of: s.body, text: text}, nil
}

// holdFor returns the time for which a refusal asks.
func (s *sender) holdFor(*http.Response) time.Duration {
	if s.last.captured == nil {
		return 0 // If it was too long to be captured, the line is held already.
	}
	if line := s.g.config.Line(); line != s.call.line { // A reload has changed the line meanwhile.
		line.Hold(s.last.pause)
	}
	return s.last.pause
}

// suspendWriteTimeout keeps the time in line before the second attempt from using up the server's WriteTimeout, as the
// middleware does before the first one. Errors mean that an outer ResponseWriter hides the deadline, and nothing can be done.
func suspendWriteTimeout(w http.ResponseWriter, r *http.Request) (restart func()) {
	server, ok := r.Context().Value(http.ServerContextKey).(*http.Server)
	if !ok || server.WriteTimeout <= 0 {
		return func() {}
	}
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Time{}) // HTTP/2 resets the stream as soon as it passes.
	return func() { _ = control.SetWriteDeadline(time.Now().Add(server.WriteTimeout)) }
}

// refuse refuses a call in the provider's place, and notes it, whoever writes the response.
func (g *Gateway) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if hasMoved(r.Context()) {
		return
	}
	c, status := callOf(r.Context()), g.failureOf(r, err).status
	c.hasWaited()
	if c.status = status; status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		g.config.Ledger.refused(c.team, time.Now())
	}
	g.config.Refuse(w, r, err)
}

// end ends the call.
func (c *call) end(r *http.Request) {
	c.body.release()
	if c.isMoved || !c.isSent && hasMoved(r.Context()) {
		return
	}
	if c.status == 0 {
		c.hasWaited()
	}
	if c.status == 0 && (!c.isSent || r.Context().Err() == context.Canceled) {
		c.status = StatusGone
	}
	if c.g.config.Record != nil {
		c.g.config.Record(r, c.record())
	}
}

var errMoved = errors.New("gateway: the call has moved to another process")

// leaves reports whether the call may be sent to the provider, and not by another process.
func (c *call) leaves(w http.ResponseWriter, r *http.Request) bool {
	if c.g.config.Leaves != nil && c.g.config.Leaves(w, r) != nil {
		c.isMoved = true
	}
	return !c.isMoved
}

// hasMoved reports whether a context has ended as the call goes on in another process.
func hasMoved(ctx context.Context) bool {
	_, ok := errors.AsType[interface {
		error
		Moved()
	}](context.Cause(ctx))
	return ok
}

// ofThoseHere logs nothing of calls that have moved.
type ofThoseHere struct{ slog.Handler }

func (h ofThoseHere) Handle(ctx context.Context, r slog.Record) error {
	if hasMoved(ctx) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

func (h ofThoseHere) WithAttrs(attrs []slog.Attr) slog.Handler {
	return ofThoseHere{h.Handler.WithAttrs(attrs)}
}

func (h ofThoseHere) WithGroup(name string) slog.Handler {
	return ofThoseHere{h.Handler.WithGroup(name)}
}

// setTiming says how long the call has waited.
func (c *call) setTiming(h http.Header) {
	h.Add("Server-Timing", fmt.Sprintf("shape;dur=%.3f", float64(c.waited)/float64(time.Millisecond)))
}

package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/leakybucket/llm"
	"example.com/leakybucket/shaper"
)

// A Config has the settings of a [Gateway].
type Config struct {
	Provider string    // one of Providers
	Quota    llm.Quota // of a minute

	// Line returns the line in which calls wait, with fair queueing ([shaper.WithFairQueue]) and the limits of [Limits].
	// It is called each time that the line is needed. A call settles in the line that it has left.
	Line func() *shaper.Shaper

	// Scale is the number of cost units of the line in a millionth of a minute's quota; 0 means 1. If the quota of a line
	// changes while calls wait with costs by the quota before, a changed Scale re-times them too. The function [Scale]
	// returns it.
	Scale float64

	// Team returns the team of a call, which is its key in the line; nil: all calls have one. If ok is false, the call is
	// refused with status 401.
	Team func(*http.Request) (team string, ok bool)

	// Bodies bounds the bytes that the calls of the line hold of their bodies, until their responses begin; 0 means
	// DefaultBodies. A call that finds no room is estimated by its length alone, and not sent again. A body that has been
	// coming for a second makes room for others: its call is refused with status 503.
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

	// Options are further options of the [shaper.Middleware] in which calls wait, such as [shaper.WithLogger].
	Options []shaper.MiddlewareOption

	// RetrySpread bounds a random time that is added to Retry-After of a refused call.
	RetrySpread time.Duration

	// Refuse responds to a call that was not admitted, and may call [Gateway.WriteError]. nil means WriteError.
	Refuse func(http.ResponseWriter, *http.Request, error)
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
// without one it is passed on. A refusal after which the call is sent again costs nothing.
//
// A response with 401, 403 or 404 costs a request's share, as no model has run. If any other response reports no usage,
// breaks off or does not come, the estimate stands. The log says so, for each reason in at most one line a minute.
type Gateway struct {
	config  Config
	dialect dialect
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
	}
	c.Bodies, c.BodyTimeout = cmp.Or(c.Bodies, DefaultBodies), cmp.Or(c.BodyTimeout, DefaultBodyTimeout)
	if c.Ledger == nil {
		c.Ledger = NewLedger()
	}
	g := &Gateway{config: c, dialect: d, faults: faultLog{log: c.Log, last: map[string]faults{}}}
	if c.Refuse == nil {
		g.config.Refuse = g.WriteError
	}
	return g, nil
}

// Begin makes this Gateway the subject of its Ledger. It is not part of New, so that a configuration that fails changes
// nothing.
func (g *Gateway) Begin() {
	c := g.config
	c.Ledger.follow(subject{c.Provider, c.Quota, g.minute(), c.Line, c.Weight, c.Labels})
	c.Ledger.bodies.allow(c.Bodies)
}

// Ledger returns the Ledger in which the Gateway counts.
func (g *Gateway) Ledger() *Ledger { return g.config.Ledger }

// millionths is the number of package llm's cost units in a minute's quota.
const millionths = 1_000_000

// minute returns the number of cost units in a minute's quota.
func (g *Gateway) minute() float64 { return millionths * g.config.Scale }

// cost returns the cost of a call in the line.
func (g *Gateway) cost(u llm.Usage) int { return g.scaled(g.config.Quota.Cost(u), math.Ceil) }

// scaled returns a number of millionths in cost units. A negative one stays as it is.
func (g *Gateway) scaled(n int, round func(float64) float64) int {
	if n < 0 {
		return n
	}
	return int(round(min(float64(n)*g.config.Scale, math.MaxInt32)))
}

// Wrap returns the gateway in front of a handler that passes calls to the provider, such as a reverse proxy. The handler
// must be ready to serve a request a second time, which is restored before.
func (g *Gateway) Wrap(next http.Handler) http.Handler {
	options := append(slices.Clone(g.config.Options),
		shaper.WithCost(func(r *http.Request) int { return callOf(r.Context()).cost }),
		shaper.WithErrorHandler(g.refuse))
	line := shaper.Middleware(limiter{}, options...)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		callOf(r.Context()).serve(w, r, next)
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &call{g: g, arrived: time.Now(), body: &body{of: &g.config.Ledger.bodies}}
		outer := r.Context()
		// Handlers around this one may look at the request that they have made, as Caddy's do.
		*r = *r.WithContext(context.WithValue(outer, callKey{}, c))
		defer func() {
			*r = *r.WithContext(outer)
			c.end(r)
		}()
		if err := c.read(w, r); err != nil {
			if !errors.Is(err, shaper.ErrBody) && !errors.Is(err, errNoRoom) { // After these a deadline has passed.
				giveUpBody(w, r)
			}
			g.refuse(w, r, err)
			return
		}
		line.ServeHTTP(w, r)
	})
}

// A call is one call on its way. It belongs to the goroutine of its request.
type call struct {
	g        *Gateway
	arrived  time.Time
	team     string
	model    string
	estimate llm.Usage
	cost     int
	body     *body
	isWhole  bool // all of the body has come

	waited  time.Duration
	left    time.Time // when it left the line for the last time
	settle  func(actual int)
	isSent  bool // to the provider
	retried bool

	status   int
	reported *llm.Usage
}

type callKey struct{}

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
	head, rest := []byte{}, r.Body
	hasBody := rest != nil && rest != http.NoBody
	if c.isWhole = !hasBody; hasBody {
		if head, c.isWhole, err = c.body.read(w, r, c.g.config.BodyTimeout); err != nil {
			return err
		}
	}
	p := c.g.dialect.provider
	if c.estimate, err = p.Estimate(r); err != nil {
		return err
	}
	c.cost = c.g.cost(p.Counted(c.estimate))
	whole := []byte(nil)
	if c.isWhole {
		whole, rest = head, nil
		c.body.keep(whole)
	} else if c.body.hadNoRoom {
		c.g.faults.note("there is no room for the bodies of calls, which are estimated by their length", 0)
	}
	if hasBody {
		r.Body = &sending{c.body, head, rest}
	}
	if c.g.config.Record != nil {
		c.model = modelOf(r, whole)
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

// A limiter lets each call wait as its team. [shaper.Middleware] handles connections whose requests wait, but it lacks
// costs that are known only at the end, so the call settles itself.
type limiter struct{}

func (limiter) WaitN(context.Context, int) error { return errors.ErrUnsupported }

// Acquire, unlike WaitN, learns that a connection is hijacked: then the cost stays unknown.
func (limiter) Acquire(ctx context.Context, _ int) (release func(), err error) {
	c := callOf(ctx)
	if err := c.enter(ctx, (*shaper.KeyLimiter).Reserve); err != nil {
		return nil, err
	}
	return func() {
		if c.isSent {
			c.settle(-1)
			return
		}
		c.settle(0) // The caller has gone.
	}, nil
}

// enter lets the call wait in line.
func (c *call) enter(ctx context.Context, reserve func(*shaper.KeyLimiter, context.Context, int) (func(int), error)) error {
	begun := time.Now()
	settle, err := reserve(c.g.config.Line().For(c.team), ctx, c.cost)
	now := time.Now()
	c.waited += now.Sub(begun)
	if err != nil {
		return err
	}
	c.left, c.settle = now, settle
	c.g.config.Ledger.departed(c.team, c.waited, now)
	return nil
}

// serve passes the call to the provider, and once more if that has refused it.
func (c *call) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	c.isSent = true
	header, first := w.Header().Clone(), (*http.Request)(nil)
	if c.isWhole {
		first = r.Clone(r.Context())
	}
	a := c.try(w, r, next)
	if a.again != nil {
		restart := suspendWriteTimeout(w, r)
		err := c.enter(r.Context(), (*shaper.KeyLimiter).ReserveRetry)
		restart()
		isGone := err != nil && r.Context().Err() == context.Canceled
		if err == nil || isGone {
			clear(w.Header()) // of the first response
			maps.Copy(w.Header(), header)
		}
		switch {
		case err == nil:
			c.retried, c.reported = true, nil
			if *r = *first; len(a.again) > 0 {
				r.Body = &sending{c.body, a.again, nil}
			}
			a = c.try(w, r, next)
		case isGone:
			c.left, c.status = time.Time{}, StatusGone
			shaper.WriteError(w, r, context.Canceled) // Silence would be an empty response with status 200.
			return
		}
	}
	if a.captured != nil {
		a.passOn(int64(a.captured.Len()))
	}
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
	c, status := callOf(r.Context()), failureOf(r, err).status
	if c.status = status; status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		g.config.Ledger.refused(c.team, time.Now())
	}
	g.config.Refuse(w, r, err)
}

// end ends the call.
func (c *call) end(r *http.Request) {
	c.body.release()
	if c.status == 0 && (!c.isSent || r.Context().Err() == context.Canceled) {
		c.status = StatusGone
	}
	if c.g.config.Record != nil {
		c.g.config.Record(r, c.record())
	}
}

// setTiming says how long the call has waited.
func (c *call) setTiming(h http.Header) {
	h.Add("Server-Timing", fmt.Sprintf("shape;dur=%.3f", float64(c.waited)/float64(time.Millisecond)))
}

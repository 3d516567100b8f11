package shaper

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"example.com/leakybucket/internal/httpfield"
	"example.com/leakybucket/shaper/internal/httpout"
)

// A Transport is an [http.RoundTripper] that paces the requests of a client: each request waits for a [Limiter]
// before it goes to Base, and when the upstream refuses one of them and asks to hold back, all requests behind it
// wait too. Any number of clients may share one, as it is or by pointer. It must not be changed once it is in use,
// and is safe for concurrent use if its parts are.
//
//	client := &http.Client{Transport: &shaper.Transport{Limiter: s}}
//
// A request waits until its context ends at most, of which [http.Client.Timeout] is a part. If it is not admitted,
// its body is closed, nothing is sent, and [errors.Is] and [errors.As] find the error of the Limiter, also through
// the *url.Error of an http.Client. Each redirect is a request of its own, and so is each attempt of a library that
// retries above the Transport.
//
// With [Limits.InFlight], or any Limiter with a method like [Shaper.Acquire] (unless one like [Shaper.Limits]
// returns an InFlight of 0), a request is in flight until its response body has been read to the end, has failed, or
// has been closed: so close every body.
//
// A refusal, which is a response with status 429 or 503, asks the client to hold back by Retry-After (seconds, or a
// date, compared with the response's own Date), else by a RateLimit field (draft-ietf-httpapi-ratelimit-headers-11)
// which says that nothing remains, as in "default";r=0;t=30. The Transport then calls the Limiter's Hold, if it has
// one, for at most MaxHold. Without a valid time above 0 nothing is held, as the rate still bounds the requests
// sent. Other responses hold nothing: r=0 is the normal state of a client that uses its rate to the full. HoldFor
// says otherwise.
type Transport struct {
	// Requests wait for the Limiter. It must not be nil.
	Limiter Limiter

	// Base sends the requests. nil means [http.DefaultTransport].
	Base http.RoundTripper

	// Cost returns the cost of a request; nil means 1. A request of cost 0 is sent at once, and never a second time. One of
	// negative cost fails with [ErrNegativeCost]. With Actual it is an estimate.
	Cost func(*http.Request) int

	// Actual is called with each response, and returns a function that is called when the body has ended or was closed: it
	// returns the actual cost, by which the request is settled ([Shaper.Reserve]), or a negative number if that is unknown.
	// Actual may replace the body by one that reads along. If the function is nil, or there is no response, the estimate
	// stands. For a Limiter that has no method like Reserve, Actual is not called.
	Actual func(*http.Response) func() int

	// Each, unless it is nil, takes the place of Cost and Actual for a Limiter that is a [Shaper] [WithMeters]. It returns the
	// estimates of a request at each level, as for [Shaper.ReserveEach], and what Actual is there: actual, unless it is nil, is
	// called with each response, and the function that it returns returns the actual costs. A request fails with the error.
	Each func(*http.Request) (estimates []int, actual func(*http.Response) func() []int, err error)

	// HoldFor returns how long a response asks callers to hold back, in place of the time that Transport reads itself; 0 or less:
	// not at all. It is called before Actual, and may replace the body by one that it has read. A response of any status for
	// which it is above 0 holds the line, and one with status 403, 429, 503 or 529 is a refusal; no other is.
	HoldFor func(*http.Response) time.Duration

	// Key returns the key as which a request waits, for a [Shaper] [WithFairQueue]; with any other Limiter, and if Key returns an
	// error, a request fails. nil: all have the key "". For a request of cost 0 Key is not called.
	Key KeyFunc

	// MaxHold is the longest hold that is taken from a response; 0 means one minute. If it is negative, every request fails.
	MaxHold time.Duration

	// Retry sends a request once more if the upstream has refused it: by a 429, or by a 503 that asks to hold back; with HoldFor,
	// by what is a refusal there. They say that the request was not processed, so even a POST can be sent again. It must have
	// no body or a GetBody, and a cost above 0.
	//
	// The request waits until the hold is over, and is not in flight meanwhile. It was admitted already, so it enters the line of
	// a [Shaper], or of a key of a [Group], at the head, also in a [Chain], and during a Shutdown: Depth and MaxWait do not apply to
	// it. For any other Limiter it is a newcomer. There is no third attempt: the second response is returned whatever it says,
	// and holds the line as the first did. The first one, of which at most 64 KiB are read for at most 5 seconds, is returned if
	// the request cannot be sent again, for example because the hold would last beyond its deadline.
	Retry bool

	limiterFor func(*http.Request) (inner, error) // of Group.Transport; else nil
	misused    error                              // which field Group.Transport can't use; nil: none

	// A RoundTrip sets them in its copy, for its request.
	estimates []int                             // nil: the request has one cost
	actualOf  func(*http.Response) func() []int // nil: the costs are known before
}

// Transport returns t with the bucket of each request's key as its Limiter, such as one for each host that a client
// calls ([ByHost]). [Transport.Retry] and the holds are the key's. The RoundTripper has a method
// CloseIdleConnections.
//
// If key or the limits function returns an error, the request fails with it; only a dry run sends it, with the error
// in its [Verdict]. A request of cost 0 is sent at once: key is not called, and nothing is held or settled for it.
// If key is nil, or t has a Limiter or a Key, every request fails with an error that says so.
func (g *Group[K]) Transport(key func(*http.Request) (K, error), t Transport) http.RoundTripper {
	g.mustBeMade()
	switch {
	case key == nil:
		t.misused = errors.New("shaper: Group.Transport needs a function that tells the key of a request")
	case t.Limiter != nil:
		t.misused = errors.New("shaper: Group.Transport: Transport.Limiter must be nil: a request waits for the bucket of its key")
	case t.Key != nil:
		t.misused = errors.New("shaper: Group.Transport: Transport.Key must be nil: Group.Transport has the function for the key")
	}
	t.limiterFor = g.limiterFor(key)
	return t
}

const defaultMaxHold = time.Minute

// statusOverloaded is a status that net/http has no name for. APIs of language models answer with it.
const statusOverloaded = 529

var errNoLimiter = errors.New("shaper: Transport.Limiter is nil; to send every request at once, use Base")

// RoundTrip lets the request wait for the Limiter, and sends it by Base.
func (t Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	sent := false
	defer func() {
		if !sent { // After an error, or a panic of Cost or of the Limiter.
			httpout.CloseBody(r.Body)
		}
	}()
	n, err := t.price(r)
	if err != nil {
		return nil, err
	}
	if n == 0 && t.limiterFor != nil { // Its key is not known, and so neither what to hold nor what to settle.
		sent = true
		return t.base().RoundTrip(r)
	}
	limiter, err := t.limiterOf(r, n)
	if err != nil {
		return nil, err
	}
	came := time.Now() // Its retry may wait as long as if it had not been sent in between.
	end, err := t.enterNew(limiter, r, n)
	if err != nil {
		return nil, err
	}
	sent = true // From here on Base must close the body.
	response, asked, err := t.send(limiter, r, end)
	if err == nil && response != nil && t.Retry && (n > 0 || end.carried != nil) && t.isRefusal(response, asked) {
		again, err := t.sendAgain(limiter, r, n, came, end.carried, response, asked)
		if again == response && end.mayReenter && end.reserved != nil { // It is not sent again.
			if ends := end.with(t.actualOf(response)); !httpout.ReleaseWithBody(response, r.Method, ends) {
				ends()
			}
		}
		return again, err
	}
	return response, err
}

// CloseIdleConnections calls the method of the same name of Base, if there is one, as
// [http.Client.CloseIdleConnections] does.
func (t Transport) CloseIdleConnections() {
	if c, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

func (t Transport) base() http.RoundTripper {
	if t.Base == nil {
		return http.DefaultTransport
	}
	return t.Base
}

// price sets the costs of a request, and returns the largest.
func (t *Transport) price(r *http.Request) (n int, err error) {
	if t.Each == nil {
		if n, err = t.costOf(r); err == nil && t.Actual != nil {
			actualOf := t.Actual
			t.actualOf = func(response *http.Response) func() []int {
				actual := actualOf(response)
				if actual == nil {
					return nil
				}
				return func() []int { return []int{actual()} }
			}
		}
		return n, err
	}
	if _, err = t.costOf(r); err != nil {
		return 0, err
	}
	if t.estimates, t.actualOf, err = t.Each(r); err != nil {
		return 0, err
	}
	if n = largestOf(t.estimates); n < 0 {
		return 0, ErrNegativeCost
	}
	if t.actualOf == nil && n > 0 { // The estimates stand, and are for their levels all the same.
		t.actualOf = func(*http.Response) func() []int { return nil }
	}
	return n, nil
}

// costOf returns the cost of a request, or an error if the cost is negative or the
// Transport is set up wrongly.
func (t Transport) costOf(r *http.Request) (n int, err error) {
	switch {
	case t.misused != nil:
		return 0, t.misused
	case t.Limiter == nil && t.limiterFor == nil:
		return 0, errNoLimiter
	case t.MaxHold < 0:
		return 0, fmt.Errorf("shaper: Transport.MaxHold is %v, must not be negative", t.MaxHold)
	case t.Cost == nil:
		return 1, nil
	}
	// A negative cost is not left to the Limiter, because some of them, x/time's among
	// them, would let more through after it.
	if n = t.Cost(r); n < 0 {
		return 0, ErrNegativeCost
	}
	return n, nil
}

var errKeyOfTransport = errors.New("shaper: Transport.Key is for a Limiter that is a Shaper WithFairQueue")

// limiterOf returns the Limiter as a request of cost n sees it.
func (t Transport) limiterOf(r *http.Request, n int) (inner, error) {
	switch {
	case t.limiterFor != nil:
		return t.limiterFor(r)
	case t.Key == nil:
		return innerOf(t.Limiter), nil
	}
	s, ok := t.Limiter.(*Shaper)
	if !ok {
		return nil, errKeyOfTransport
	}
	s.mustBeMade()
	switch {
	case !s.ordered:
		return nil, errKeyOfTransport
	case n == 0:
		return shaperLimiter{s}, nil
	}
	return s.limiterByKey(t.Key, r)
}

// A requestEnd has the function to call when a request is no longer in flight: one of the two, or none if
// both are nil.
type requestEnd struct {
	release  func()
	reserved unsettled // if the Transport has Actual
	carried  *settling // if a Middleware has reserved for it; nil: none has

	mayReenter bool // it is the first attempt of a carried one
}

// with returns the function to call at the end of a request whose actual cost a function returns; nil
// means that the cost is not known.
func (e requestEnd) with(actual func() []int) func() {
	if e.reserved == nil {
		return e.release
	}
	return func() {
		costs := []int(nil)
		defer func() { settleEach(e.reserved, costs) }() // Even if the function panics.
		if actual != nil {
			costs = actual()
		}
	}
}

// enterNew lets a request of cost n wait for the Limiter, as a newcomer. With an error there is
// nothing to be called at its end.
func (t Transport) enterNew(l inner, r *http.Request, n int) (requestEnd, error) {
	if s := settlingOf(r.Context()).take(l); s != nil {
		end := t.endOf(s)
		end.mayReenter = true
		return end, nil
	}
	if n == 0 && t.actualOf == nil {
		return requestEnd{}, nil
	}
	ctx, stop := httpout.WaitContextOf(r)
	defer stop()
	return t.enter(ctx, l, n, newcomer)
}

// enter lets a request of cost n wait for the Limiter.
func (t Transport) enter(ctx context.Context, l inner, n int, kind entryKind) (end requestEnd, err error) {
	switch {
	case t.actualOf != nil && t.estimates == nil && l.reserves():
		end.reserved, err = l.reserve(ctx, n, kind)
	case t.actualOf != nil && l.reserves():
		end.reserved, err = reserveEach(ctx, l, t.estimates, kind)
	case n > 0:
		end.release, err = l.enter(ctx, n, kind)
	}
	if err != nil {
		return requestEnd{}, err
	}
	return end, nil
}

// A pause is the time for which a response asks the client to hold back.
type pause struct {
	span time.Duration // at most MaxHold; 0: the response does not ask
	held bool          // the Limiter is held for that time, so that all its requests wait
}

// send sends a request that has been admitted, and holds the line if the response asks
// for a pause. It ends the request exactly once, even if Base panics, or leaves that to
// the response's body. The hold comes before the end, because the end lets the next
// request leave.
func (t Transport) send(limiter inner, r *http.Request, end requestEnd) (response *http.Response, asked pause, err error) {
	withBody, ends := false, end.with(nil)
	if ends != nil {
		defer func() {
			if !withBody {
				ends()
			}
		}()
	}
	response, err = t.base().RoundTrip(r)
	if err != nil || response == nil {
		return response, pause{}, err
	}
	returned := false
	defer func() {
		if !returned { // HoldFor, Actual or the Limiter has panicked, and nobody else has the response.
			httpout.CloseBody(response.Body)
		}
	}()
	if asked.span = min(t.holdFrom(response), t.maxHold()); asked.span > 0 {
		asked.held = hold(limiter, r, asked.span)
	}
	if end.reserved != nil && !(end.mayReenter && t.Retry && t.isRefusal(response, asked)) { // That may be settled with 0.
		ends = end.with(t.actualOf(response))
	}
	withBody = ends != nil && httpout.ReleaseWithBody(response, r.Method, ends)
	returned = true
	return response, asked, nil
}

// hold holds the Limiter for a time, and reports whether all its requests wait for the end of it.
// The request that has been answered waits until its context ends at most.
func hold(limiter inner, r *http.Request, span time.Duration) bool {
	ctx, stop := httpout.WaitContextOf(r)
	defer stop()
	return limiter.hold(ctx, span)
}

// holdFrom returns for how long a response asks the client to hold back, at most 365
// days. It returns 0 if the response does not ask, or asks in a malformed field.
// Retry-After takes precedence, as the draft of the RateLimit fields demands.
func (t Transport) holdFrom(response *http.Response) time.Duration {
	if t.HoldFor != nil {
		return min(t.HoldFor(response), horizon)
	}
	if response.StatusCode != http.StatusTooManyRequests && response.StatusCode != http.StatusServiceUnavailable {
		return 0
	}
	if d := httpfield.RetryAfter(response.Header, horizon); d > 0 {
		return d
	}
	return httpfield.Exhausted(response.Header, horizon)
}

func (t Transport) maxHold() time.Duration {
	if t.MaxHold == 0 {
		return defaultMaxHold
	}
	return t.MaxHold
}

// isRefusal reports whether a response says that the request was not processed. asked
// is the pause that the response asks for.
func (t Transport) isRefusal(response *http.Response, asked pause) bool {
	switch response.StatusCode {
	case http.StatusTooManyRequests:
		return t.HoldFor == nil || asked.span > 0
	case http.StatusServiceUnavailable:
		return asked.span > 0
	case http.StatusForbidden, statusOverloaded: // Without HoldFor they ask for nothing.
		return t.HoldFor != nil && asked.span > 0
	}
	return false
}

// sendAgain sends a request of cost n that came to its Limiter at an instant once more, after a refusal that asks to hold back
// from now on. If the request cannot be sent, it returns the refusal.
//
// GetBody, the bodies and the Limiter are foreign code, which may panic. Then both
// bodies are closed. Closing the refusal's body also ends the time in flight.
func (t Transport) sendAgain(limiter inner, r *http.Request, n int, came time.Time, carried *settling, refusal *http.Response, asked pause) (*http.Response, error) {
	until := time.Now().Add(asked.span)
	ctx, stop := httpout.WaitContextOf(r)
	defer stop()
	if deadline, timed := ctx.Deadline(); timed && !until.Before(deadline) {
		return refusal, nil // A Shaper would refuse the retry, and the refusal has not been read yet.
	}
	taken := false // The refusal's body has been read or is returned, so it must not be closed here.
	defer func() {
		if !taken {
			httpout.CloseBody(refusal.Body)
		}
	}()
	// The body is asked for before the wait, so that no slot is spent if there is none.
	body, ok := httpout.BodyAgain(r)
	if !ok {
		taken = true
		return refusal, nil
	}
	sent := false
	defer func() {
		if !sent {
			httpout.CloseBody(body)
		}
	}()
	ok = httpout.Detach(refusal)
	taken = true
	if !ok {
		return refusal, nil
	}
	wish := time.Time{}
	if carried != nil {
		came, wish = carried.asked, carried.until // It was the Middleware that asked for the first attempt.
	}
	end, err := t.reenter(&waitContext{Context: ctx, asked: came, until: wish}, limiter, carried, n, until, asked.held)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return nil, err
	default:
		return refusal, nil
	}
	second := r.Clone(r.Context())
	second.Body = body
	sent = true
	response, _, err := t.send(limiter, second, end)
	return response, err
}

// reenter lets a refused request of cost n wait for the Limiter again: at the head of
// a [Shaper]'s line. If held is false, the request itself first waits until the instant
// until.
func (t Transport) reenter(ctx context.Context, l inner, carried *settling, n int, until time.Time, held bool) (requestEnd, error) {
	if !held {
		if hold := time.Until(until); hold > 0 {
			held := time.NewTimer(hold)
			defer held.Stop()
			select {
			case <-held.C:
			case <-ctx.Done():
				return requestEnd{}, errorOf(ctx)
			}
		}
	}
	if carried == nil {
		return t.enter(ctx, l, n, reentry)
	}
	if err := carried.reenter(ctx); err != nil {
		return requestEnd{}, err
	}
	return t.endOf(carried), nil
}

// endOf returns the end of a request for which a Middleware has reserved.
func (t Transport) endOf(s *settling) requestEnd {
	end := requestEnd{carried: s}
	if t.actualOf != nil {
		end.reserved = sending{s}
	}
	return end
}

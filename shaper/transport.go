package shaper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// A Transport is an http.RoundTripper that paces what a client sends: each
// request waits for a Limiter before it goes to Base, and when the upstream asks
// one of them to hold back, everyone behind it waits too. It is for API clients,
// SDKs and pools of workers, however many share it:
//
//	client := &http.Client{Transport: &shaper.Transport{Limiter: s}}
//
// Both a Transport and a pointer to one are RoundTrippers. It must not be changed
// once it is in use, and is safe for concurrent use if its parts are.
//
// A request waits no longer than its context lasts, of which the Timeout of an
// http.Client is a part. If it is not admitted its body is closed, nothing is
// sent, and the error is that of the Limiter, in which errors.Is and errors.As
// find ErrQueueFull, *RejectError and context.Canceled also through the
// *url.Error of an http.Client. Each redirect that a client follows is a request
// of its own, and so is each attempt of a library that retries above it.
//
// With a cap (Limits.InFlight) a request keeps its place until the body of its
// answer has been read to its end, has failed, or is closed, and no longer than
// that if there is none or no answer at all. So close every body: one that is
// forgotten keeps its place, as it keeps its connection. Any Limiter with
// an Acquire like Shaper's counts as one with a cap, unless its Limits say that
// InFlight is 0.
//
// An answer asks to hold back
//
//   - by Retry-After, if its status is 429 or 503: seconds, or a date, which is
//     taken relative to the answer's own Date where it has one, as the clock of
//     this machine may differ from that of the upstream;
//   - else by a RateLimit field (draft-ietf-httpapi-ratelimit-headers-11) with
//     nothing remaining, as in "default";r=0;t=30, whatever the status. Of
//     several items the longest t counts.
//
// Then the Limiter's Hold is called, if it has that method, with that time or
// MaxHold. What is malformed, 0, or in the past counts as not there. A 429 that
// names no time holds nothing: for how long would be a guess, and the rate goes
// on bounding what is sent. The older fields RateLimit-Remaining and
// RateLimit-Reset are not read, as the second is a time span with some and an
// instant with others.
//
// An upstream that says r=0;t=1 in every answer holds everybody for a second
// after each, so that hardly more than one request a second is sent, whatever the
// rate. Where the rate is to count alone, let Base drop the field of its answers.
type Transport struct {
	// Limiter is what requests wait for. It must not be nil.
	Limiter Limiter

	// Base sends the requests. nil means http.DefaultTransport.
	Base http.RoundTripper

	// Cost tells what a request costs. nil means 1. A request of cost 0 is sent
	// at once, without asking the Limiter, and never again, whatever Retry says;
	// a negative cost is ErrNegativeCost.
	Cost func(*http.Request) int

	// MaxHold is the longest hold that is taken from an answer. 0 means one
	// minute; a negative one is an error of every request.
	MaxHold time.Duration

	// Retry sends a request that was refused once more: after a 429, or a 503
	// that asks to hold back. Both say that the request was not processed, so a
	// POST can be sent again too. (A 503 that asks for nothing may come from a
	// server that broke down in the middle, and is returned.)
	//
	// The request must have no body, or a GetBody to have it again, and a cost
	// above 0. It gives its place back and enters the line of a Shaper at the
	// head: before all who wait, behind those only that were refused and came back
	// before it. Depth and MaxWait are for newcomers and don't refuse it, nor does
	// a Shutdown that still lets the line leave. Any other Limiter, be it one with
	// a *Shaper inside, is asked anew, as by a newcomer; and if that can't hold,
	// the request alone waits for as long as it was asked to.
	//
	// The second answer is returned whatever it says, and holds as the first
	// did. The first is returned if the request can't be sent again: if its time
	// would not suffice, the Shaper is closed, or the first answer is longer than
	// 64 KiB. One whose body takes longer than 5 seconds to come is cut off, so
	// that a slow refusal does not keep the request from being sent again; if it
	// must be returned all the same, its reading ends with an error there. A
	// context that ends meanwhile is an error, as always.
	Retry bool
}

const defaultMaxHold = time.Minute

var errNoLimiter = errors.New("shaper: Transport.Limiter is nil; to send every request at once, use Base")

// RoundTrip lets the request wait for the Limiter, and sends it by Base.
func (t Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	n, err := t.costOf(r)
	var release func()
	if err == nil {
		release, err = t.enter(r.Context(), n, newcomer)
	}
	if err != nil {
		closeBody(r.Body)
		return nil, err
	}
	answer, hold, err := t.send(r, release)
	if err == nil && answer != nil && t.Retry && n > 0 && isRefusal(answer, hold) {
		return t.sendAgain(r, n, answer, hold)
	}
	return answer, err
}

// CloseIdleConnections is that of Base, where it has one. The method of this
// name of an http.Client calls it.
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

// costOf is what a request costs, or what is wrong with the Transport.
func (t Transport) costOf(r *http.Request) (n int, err error) {
	switch {
	case t.Limiter == nil:
		return 0, errNoLimiter
	case t.MaxHold < 0:
		return 0, fmt.Errorf("shaper: Transport.MaxHold is %v, must not be negative", t.MaxHold)
	case t.Cost == nil:
		return 1, nil
	}
	// A negative cost is not left to the Limiter: it makes some of them, x/time's
	// among them, fuller instead of emptier.
	if n = t.Cost(r); n < 0 {
		return 0, ErrNegativeCost
	}
	return n, nil
}

// enter lets a request of cost n wait for the Limiter. What it returns gives the
// request's place back; it is nil if there is none. At the head, as again, it
// enters the line of a Shaper only.
func (t Transport) enter(ctx context.Context, n int, kind entryKind) (release func(), err error) {
	if n == 0 {
		return nil, nil
	}
	s, ok := t.Limiter.(*Shaper)
	if !ok {
		return enter(ctx, t.Limiter, acquirerOf(t.Limiter), n)
	}
	s.mustBeMade()
	held, err := s.wait(ctx, n, kind)
	if held.taken == nil {
		return nil, err
	}
	return func() { s.releaseSeat(&s.flow, held) }, nil
}

// send sends a request that has left, takes the hold that its answer asks for,
// and sees to it that the request's place is given back exactly once, even if
// Base panics. The hold comes first: with the place free, the next would leave.
func (t Transport) send(r *http.Request, release func()) (answer *http.Response, hold time.Duration, err error) {
	kept := false
	if release != nil {
		defer func() {
			if !kept {
				release()
			}
		}()
	}
	answer, err = t.base().RoundTrip(r)
	if err != nil || answer == nil {
		return answer, 0, err
	}
	if hold = min(holdOf(answer), t.maxHold()); hold > 0 {
		if h, ok := t.Limiter.(holder); ok {
			h.Hold(hold)
		}
	}
	kept = release != nil && keepPlace(answer, r.Method, release)
	return answer, hold, nil
}

func (t Transport) maxHold() time.Duration {
	if t.MaxHold == 0 {
		return defaultMaxHold
	}
	return t.MaxHold
}

// keepPlace lets the body of an answer release the place of its request, and
// says whether there is one that will.
func keepPlace(a *http.Response, method string, release func()) bool {
	if !hasBody(a, method) {
		return false
	}
	body := &placedBody{ReadCloser: a.Body, release: release}
	a.Body = body
	if w, ok := body.ReadCloser.(io.Writer); ok {
		a.Body = placedConn{body, w}
	}
	return true
}

// hasBody says whether there is anything to be read of an answer. A length of 0
// says that there is not in HTTP/2 only: in HTTP/1 net/http says so by NoBody,
// and 0 is the length of an upgraded connection.
func hasBody(a *http.Response, method string) bool {
	switch {
	case a.Body == nil, a.Body == http.NoBody, method == http.MethodHead,
		a.StatusCode == http.StatusNoContent, a.StatusCode == http.StatusNotModified:
		return false
	}
	return a.ProtoMajor != 2 || a.ContentLength != 0
}

// A placedBody is the body of an answer to a request that has a place.
type placedBody struct {
	io.ReadCloser
	once    sync.Once // A body may be closed while it is read, and more than once.
	release func()
}

// Read releases the place when there is no more to be read.
func (b *placedBody) Read(p []byte) (n int, err error) {
	n, err = b.ReadCloser.Read(p)
	if err != nil {
		b.once.Do(b.release)
	}
	return n, err
}

// Close releases the place.
func (b *placedBody) Close() error {
	defer b.once.Do(b.release)
	return b.ReadCloser.Close()
}

// A placedConn is a placedBody that can be written to: after 101 Switching
// Protocols it is the connection.
type placedConn struct {
	*placedBody
	io.Writer
}

// CloseWrite closes the sending half, as net/http's own does, for proxies.
func (c placedConn) CloseWrite() error {
	if w, ok := c.ReadCloser.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return fmt.Errorf("shaper: CloseWrite: %w", http.ErrNotSupported)
}

// closeBody closes the body of a request, which may have none.
func closeBody(body io.Closer) {
	if body != nil {
		_ = body.Close() // Nobody could do anything about it.
	}
}

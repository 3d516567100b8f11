package nginx

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"time"

	"example.com/leakybucket/bench/internal/measure"
)

// A burst is more requests than may leave at once, each on its own open
// connection.
type burst struct {
	Proxy    string
	Rate     int // per second
	Requests int
	Every    time.Duration // between two of them
}

// A spacing is how a burst arrived at the upstream. What it shares with the
// other experiments is computed by the same function; it is overtaken against
// the order of sending.
type spacing struct {
	measure.Spacing
	OvertakenInLine float64 `unit:"overtaken-in-line-%"` // against the order of the line
	Refused         float64 `unit:"refused"`
}

// settling is how long connections are open before something is sent, so that
// the proxy has accepted them all.
const settling = 100 * time.Millisecond

// measureSpacing sends the burst through a proxy.
func (b burst) measureSpacing(ctx context.Context, p proxy, u *upstream) (spacing, error) {
	process, address, err := p.start(ctx, u.address, b.Rate, true)
	if err != nil {
		return spacing{}, err
	}
	defer process.stop()
	if _, err := u.take(); err != nil {
		return spacing{}, err
	}
	refused, err := b.send(ctx, address)
	if err != nil {
		return spacing{}, err
	}
	arrivals, err := u.take()
	if err != nil {
		return spacing{}, err
	}
	if len(arrivals)+refused != b.Requests {
		return spacing{}, fmt.Errorf("of %d requests %d arrived and %d were refused", b.Requests, len(arrivals), refused)
	}
	return spacingOf(arrivals, refused, b.Rate)
}

// send sends the burst and returns how many were refused when all are answered.
func (b burst) send(ctx context.Context, address string) (refused int, err error) {
	patience := time.Duration(float64(b.Requests)/float64(b.Rate)*float64(time.Second)) + 20*time.Second
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not all requests were answered within %v", patience))
	defer cancel()
	callers, err := openCallers(ctx, address, b.Requests)
	if err != nil {
		return 0, err
	}
	defer callers.close()
	type response struct {
		status int
		err    error
	}
	responses := make(chan response, b.Requests) // It has room for all, so that none blocks.
	for _, c := range callers.all {
		go func() {
			status, err := c.receive()
			responses <- response{status, err}
		}()
	}
	pause(settling)
	if err := b.sendEach(callers.all); err != nil {
		return 0, errors.Join(err, context.Cause(ctx))
	}
	for range b.Requests {
		r := <-responses
		switch {
		case ctx.Err() != nil:
			return 0, context.Cause(ctx)
		case r.err != nil:
			return 0, fmt.Errorf("a response: %w", r.err)
		case r.status == http.StatusTooManyRequests:
			refused++
		case r.status != http.StatusOK:
			return 0, fmt.Errorf("a response has status %d", r.status)
		}
	}
	return refused, nil
}

// sendEach sends one request after another, from one thread, as Go's own timers
// would send three at a time.
func (b burst) sendEach(all []caller) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := time.Now()
	for i, c := range all {
		pause(time.Until(began.Add(time.Duration(i) * b.Every)))
		if err := c.send(fmt.Sprintf("/%d", i+1)); err != nil {
			return err
		}
	}
	return nil
}

// spacingOf returns the figures of what arrived.
func spacingOf(arrivals []arrival, refused, rate int) (spacing, error) {
	if len(arrivals) < 2 {
		return spacing{}, fmt.Errorf("%d requests arrived, which have no spacing", len(arrivals))
	}
	var sent, entered []measure.Departure
	known := true
	for _, a := range arrivals {
		sent = append(sent, measure.Departure{Entered: int64(a.number), At: a.at})
		entered = append(entered, measure.Departure{Entered: a.entered, At: a.at})
		known = known && a.entered > 0
	}
	interval := measure.Interval(float64(rate))
	s := spacing{
		Spacing:         measure.DeparturesOf(interval, sent).Spacing(),
		OvertakenInLine: measure.Unknown,
		Refused:         float64(refused),
	}
	if known {
		s.OvertakenInLine = measure.DeparturesOf(interval, entered).Spacing().Overtaken
	}
	return s, nil
}

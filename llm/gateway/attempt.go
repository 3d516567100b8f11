package gateway

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"example.com/leakybucket/llm"
	"example.com/leakybucket/shaper"
)

const (
	refusalKept     = 64 << 10             // bytes of a refusal; a longer one is passed on as it comes
	refusalPatience = 5 * time.Second      // for the body of a refusal; then it is cut off
	longestHold     = 365 * 24 * time.Hour // of a Transport: the Gateway bounds holds itself
	longestPause    = time.Minute          // of a line in which a wait has no bound, after a refusal

	statusOverloaded = 529 // Anthropic's and others' for an overload; net/http has no name for it
)

// An attempt is one attempt of a call, as its ResponseWriter. A refusal is captured; any other response passes at once.
type attempt struct {
	http.ResponseWriter
	call *call

	status   int
	meter    *llm.Meter    // nil: nothing has been passed on
	captured *bytes.Buffer // the body of a refusal; nil: it is passed on
	pause    time.Duration // for which the refusal asks

	length, written int64 // of the body; a length below 0 is unknown
	isBroken        bool  // it could not be written
	isHijacked      bool
	isOurs          bool // the gateway says that the provider has not answered: whether a model runs is unknown

	cutOff func() // ends the attempt
	timer  *time.Timer
}

// try passes the call to the provider.
func (c *call) try(w http.ResponseWriter, r *http.Request, next http.Handler) (a *attempt) {
	outer := r.Context()
	ctx, cancel := context.WithCancel(outer)
	a = &attempt{ResponseWriter: w, call: c, length: -1, cutOff: cancel}
	*r = *r.WithContext(ctx)
	returned := false
	defer func() {
		cancel()
		*r = *r.WithContext(outer)
		if a.timer != nil {
			a.timer.Stop()
		}
		if !returned && a.captured != nil { // A refusal that breaks off is a refusal all the same.
			if p := recover(); p != http.ErrAbortHandler {
				panic(p)
			}
		}
		a.end(r, returned)
	}()
	next.ServeHTTP(a, r)
	returned = true
	return a
}

// WriteHeader passes a status on, unless the call may be sent again after it. The first status that is not informational
// counts, as in net/http, which logs any further one.
func (a *attempt) WriteHeader(status int) {
	switch {
	case a.captured != nil:
		return // net/http would take it for the first one.
	case a.status != 0 || status < 200 && status != http.StatusSwitchingProtocols:
		a.ResponseWriter.WriteHeader(status)
		return
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable, status == statusOverloaded:
		a.captured = new(bytes.Buffer)
		a.timer = time.AfterFunc(refusalPatience, a.cutOff)
	}
	a.status = status
	c, h := a.call, a.Header()
	if n, err := strconv.ParseInt(h.Get("Content-Length"), 10, 64); err == nil {
		a.length = n
	}
	c.g.noteLeft(h)
	if a.captured == nil {
		a.begin()
	}
}

// begin passes the header on. From now on the call can't be sent again.
func (a *attempt) begin() {
	c, h := a.call, a.Header()
	c.body.forget()
	a.meter = a.newMeter()
	c.g.setLeft(h)
	c.setTiming(h)
	c.status = a.status
	a.ResponseWriter.WriteHeader(a.status)
}

// newMeter returns the Meter of the response.
func (a *attempt) newMeter() *llm.Meter {
	status := a.status
	if a.isOurs {
		status = 0 // It says nothing of what the provider has done.
	}
	return a.call.metered.Answers(status, a.Header())
}

func (a *attempt) Write(p []byte) (n int, err error) {
	if a.isHijacked {
		return 0, http.ErrHijacked
	}
	if a.status == 0 {
		a.WriteHeader(http.StatusOK)
	}
	if a.captured != nil {
		if a.captured.Len()+len(p) <= refusalKept {
			return a.captured.Write(p)
		}
		a.hold()
		a.timer.Stop()
		a.passOn(a.length)
	}
	n, err = a.ResponseWriter.Write(p)
	a.written += int64(n)
	a.isBroken = a.isBroken || err != nil
	_, _ = a.meter.Write(p[:n]) // It never fails.
	a.call.metered.Charge(a.call.line)
	if err == nil && a.length < 0 {
		// It may be a stream. Proxies know server-sent events, but not all streams of providers.
		a.Flush()
	}
	return n, err
}

// passOn sends the captured part of the body. length is the length of the whole body.
func (a *attempt) passOn(length int64) {
	captured := a.captured
	a.captured = nil
	if length != a.length {
		a.Header().Del("Content-Length") // Not all of it has come, and no more will.
	}
	a.begin()
	_, _ = a.ResponseWriter.Write(captured.Bytes()) // An error means that the caller has gone.
	a.written += int64(captured.Len())
}

// FlushError is for [http.ResponseController].
func (a *attempt) FlushError() error {
	switch {
	case a.isHijacked:
		return http.ErrHijacked
	case a.captured != nil:
		return nil
	case a.status == 0:
		a.WriteHeader(http.StatusOK)
	}
	return http.NewResponseController(a.ResponseWriter).Flush()
}

// Flush implements [http.Flusher].
func (a *attempt) Flush() { _ = a.FlushError() }

// Hijack implements [http.Hijacker], where the connection allows it.
func (a *attempt) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, both, err := http.NewResponseController(a.ResponseWriter).Hijack()
	if err != nil {
		return conn, both, err
	}
	a.isHijacked = true
	switch {
	case a.captured != nil: // The handler itself tells the caller, so the call can't be sent again.
		a.hold()
		a.timer.Stop()
		a.captured = nil
		a.call.status = a.status
	case a.status == 0: // The gateway sees nothing of the rest.
		a.status = http.StatusSwitchingProtocols
		a.call.status = a.status
	}
	return conn, both, nil
}

// Unwrap is for [http.ResponseController].
func (a *attempt) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// readRefusal finds out for how long a refusal asks.
func (a *attempt) readRefusal() {
	c := a.call
	body := io.NopCloser(bytes.NewReader(a.captured.Bytes()))
	a.pause = c.g.dialect.provider.HoldFor(&http.Response{StatusCode: a.status, Header: a.Header(), Body: body})
	if a.status == http.StatusTooManyRequests {
		c.g.config.Ledger.providerRefused()
		c.g.faults.note("the provider has refused a call with 429", a.status)
	}
	a.pause = c.g.bearable(a.pause)
}

// bearable returns for how long a refusal holds the line.
func (g *Gateway) bearable(asked time.Duration) time.Duration {
	line := g.config.Line()
	if asked = llm.Bearable(line, asked); line.Limits().MaxWait == 0 {
		asked = min(asked, longestPause)
	}
	return asked
}

// hold holds the line for as long as a refusal asks that can't be captured.
func (a *attempt) hold() {
	if a.readRefusal(); a.pause > 0 {
		a.call.g.config.Line().Hold(a.pause)
	}
}

// end settles, unless the [shaper.Transport] of the call does so, as it may be sent again.
func (a *attempt) end(r *http.Request, returned bool) {
	c := a.call
	switch {
	case a.captured != nil:
		a.readRefusal()
		return
	case a.status == http.StatusTooManyRequests:
		a.endRefused(r)
		return
	}
	if a.meter != nil {
		isWhole := returned && !a.isBroken && (a.length < 0 || a.written == a.length)
		if a.isBroken || r.Context().Err() == context.Canceled {
			c.metered.Abandon()
		}
		a.meter.End(isWhole)
		if u, ok := a.meter.Usage(); ok {
			c.reported = &u
		} else if a.status >= 200 && a.status < 300 && c.metered.RunsModel() { // Otherwise it is no call of a model.
			_, seen := c.metered.Counted()
			c.g.faults.note(reasonOf(isWhole, seen), a.status)
		}
		c.metered.Learn()
		if asked, refused := a.meter.Refused(); refused {
			c.g.config.Ledger.providerRefused()
			c.g.faults.note("the provider has refused a call in its answer", a.status)
			if pause := c.g.bearable(asked); pause > 0 {
				c.g.config.Line().Hold(pause)
			}
		}
		if c.metered.IsFree() {
			c.settleFree(r)
			return
		}
	} else if a.status == 0 {
		c.g.faults.note("no answer has come, and the estimate stands", 0)
	}
	c.g.config.Ledger.ended(c.team, c.taken(), time.Now())
	shaper.Settle(r, c.actual()...)
}

// endRefused settles a call that the provider has refused, and that is not sent again.
func (a *attempt) endRefused(r *http.Request) {
	c, m := a.call, a.newMeter()
	if a.status == http.StatusTooManyRequests || !shaper.Settle(r, c.actual()...) { // It cost nothing when it entered the line again.
		c.reported = &llm.Usage{}
		c.settleFree(r)
		return
	}
	if u, ok := m.Usage(); ok {
		c.reported = &u
	}
	c.g.config.Ledger.ended(c.team, c.taken(), time.Now())
}

// reasonOf says why no usage is known.
func reasonOf(isWhole, seen bool) string {
	why, then := "an answer has broken off, or its caller has gone", "the estimate stands"
	if isWhole {
		why = "an answer has reported no usage"
	}
	if seen {
		then = "its text counts as far as it was seen"
	}
	return why + ", and " + then
}

// A faultLog logs faults of responses, for each reason at most one line a minute, with the number of faults since the
// line before.
type faultLog struct {
	log *slog.Logger

	mu   sync.Mutex
	last map[string]faults
}

type faults struct {
	logged time.Time
	count  int
}

func (l *faultLog) note(reason string, status int) {
	l.mu.Lock()
	f, now := l.last[reason], time.Now()
	f.count++
	count, due := f.count, now.Sub(f.logged) >= time.Minute
	if due {
		f = faults{logged: now}
	}
	l.last[reason] = f
	l.mu.Unlock()
	if due && l.log != nil { // The log may be slow, so it is not written within the lock.
		l.log.Warn(reason, "status", status, "calls", count)
	}
}

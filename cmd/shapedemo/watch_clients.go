package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// herdTime is when the clients of a herd that have not been served go away for
// good: with slow limits the last would come back for hours.
const herdTime = time.Minute

var (
	errTooManyClients = errors.New("so many clients do not fit beside those of earlier buttons, which are still there")
	errOneHerd        = errors.New("a herd is still there: wait until it is served, or stop it")
	errStopping       = errors.New("the demo is stopping")
)

// simulatedClients are all clients that the page has let loose on the proxy. Their
// methods may be called from any goroutine.
type simulatedClients struct {
	send   func(context.Context, string) result // sends a request to that path of the proxy
	client *http.Client

	mu      sync.Mutex
	now     *session
	ended   bool // no client may come any more
	clients int  // there now, or about to come
	herding bool
	latest  *errand        // what a visitor asked for last; nil at first
	errands int            // that visitors have asked for
	all     sync.WaitGroup // of the errands
}

// A session is the time between two stops of the clients.
type session struct {
	coming context.Context // clients may send requests
	there  context.Context // clients wait for their responses; it ends after coming
	end    context.CancelFunc
	cut    context.CancelFunc
}

func newSession() *session {
	s := &session{}
	s.there, s.cut = context.WithCancel(context.Background())
	s.coming, s.end = context.WithCancel(s.there)
	return s
}

// newSimulatedClients returns those of the proxy at that URL. The caller must
// close them.
func newSimulatedClients(proxy string) *simulatedClients {
	client := newClient(256)
	return &simulatedClients{
		client: client,
		send:   func(ctx context.Context, path string) result { return sendOne(ctx, client, proxy+path) },
		now:    newSession(),
	}
}

// burst lets that many clients send one request each, over a span, and returns
// without waiting for them. If each has some patience, a client disconnects after
// its part of it.
func (c *simulatedClients) burst(e *errand, over time.Duration, patience func(i int) time.Duration) error {
	sends := sendTimes(e.clients, over)
	return c.start(e, func(s *session) {
		sendAt(s.coming, sends, func(i int) {
			e.note(c.sendPatiently(s, patience, i))
		})
	})
}

// sendPatiently sends one request. With patience, the client may disconnect.
func (c *simulatedClients) sendPatiently(s *session, patience func(i int) time.Duration, i int) result {
	ctx := s.there
	if patience != nil {
		if d := patience(i); d > 0 {
			var gone context.CancelFunc
			ctx, gone = context.WithTimeout(ctx, d)
			defer gone()
		}
	}
	r := c.send(ctx, pathOf(pickClient()))
	r.disconnected = r.status == 0 && ctx.Err() != nil
	return r
}

// herd lets all clients come at one instant. Those that are refused come back when
// their Retry-After is over, which is whole seconds: together, again and again.
func (c *simulatedClients) herd(e *errand) error {
	e.herd = true
	return c.start(e, func(s *session) {
		coming, end := context.WithTimeout(s.coming, herdTime)
		defer end()
		sendAt(coming, make([]time.Duration, e.clients), func(i int) {
			path := pathOf(pickClient())
			for {
				r := c.send(s.there, path)
				r.disconnected = r.status == 0 && s.there.Err() != nil
				e.note(r)
				if r.status != http.StatusTooManyRequests {
					return
				}
				if sleep(coming, r.retryAfter); coming.Err() != nil {
					return
				}
			}
		})
	})
}

// start begins an errand, if its clients fit, and returns without waiting for its
// end.
func (c *simulatedClients) start(e *errand, run func(*session)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.ended:
		return errStopping
	case e.herd && c.herding:
		return errOneHerd
	case c.clients+e.clients > maxBurst:
		return errTooManyClients
	}
	c.clients += e.clients
	c.herding = c.herding || e.herd
	if e.name != "" {
		c.errands++
		e.id, c.latest = c.errands, e
	}
	s := c.now
	c.all.Go(func() {
		run(s)
		e.end()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.clients -= e.clients
		c.herding = c.herding && !e.herd
	})
	return nil
}

// stop sends all clients away at once: those that wait disconnect.
func (c *simulatedClients) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now.cut()
	if !c.ended {
		c.now = newSession()
	}
}

// end lets no more clients come. Those that are there stay until they have their
// responses.
func (c *simulatedClients) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	c.now.end()
}

// close sends all clients away and waits until they have gone.
func (c *simulatedClients) close() {
	c.end()
	c.stop()
	c.all.Wait()
	if c.client != nil {
		c.client.CloseIdleConnections()
	}
}

// latestErrand returns the errand that a visitor asked for last, or nil.
func (c *simulatedClients) latestErrand() *errand {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.latest
}

// An errand is what one button sends clients for, and what they got.
type errand struct {
	name    string // as the page calls it; "": no visitor asked for it
	clients int
	herd    bool
	id      int // counts what visitors have asked for, from 1

	mu      sync.Mutex
	results tally
	ended   bool
}

func (e *errand) note(r result) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.results.add(r)
}

func (e *errand) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended = true
}

// report returns what the clients got so far, and reports whether all have gone.
func (e *errand) report() (results tally, ended bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.results, e.ended
}

// maxBody is how long the body of a request to the demo's API may be, in bytes.
const maxBody = 4096

// post registers what a button does: act gets the JSON object that the page sends.
func post[T any](mux *http.ServeMux, c *control, name string, act func(T) error) {
	mux.HandleFunc("POST /demo/"+name, func(w http.ResponseWriter, r *http.Request) {
		var arguments T
		err := readObject(w, r, &arguments)
		if err == nil {
			err = act(arguments)
		}
		if err != nil {
			writeProblem(w, err)
			return
		}
		writeJSON(w, http.StatusOK, c.state())
	})
}

// A problem is why a request to the demo's API is not followed.
type problem struct {
	Parameter string `json:"parameter"` // the field of the object that is wrong; "" if none is
	Value     string `json:"value"`
	Message   string `json:"message"`
	status    int
}

func (p *problem) Error() string { return p.Parameter + ": " + p.Message }

func badField(field string, value any, format string, args ...any) *problem {
	return &problem{Parameter: field, Value: fmt.Sprint(value), Message: fmt.Sprintf(format, args...), status: http.StatusBadRequest}
}

// readObject reads the JSON object of a request.
func readObject(w http.ResponseWriter, r *http.Request, into any) error {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return &problem{Parameter: "Content-Type", Value: r.Header.Get("Content-Type"), Message: "must be application/json", status: http.StatusUnsupportedMediaType}
	}
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return badField(wrong.Field, wrong.Value, "must be of another type: %s", wrong.Type)
	}
	if err == nil {
		if _, end := d.Token(); end != io.EOF {
			err = errors.New("there is something after the object")
		}
	}
	if err != nil {
		// The error has no type of its own.
		if quoted, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
			if field, bad := strconv.Unquote(quoted); bad == nil {
				return badField(field, "", "is not a field here")
			}
		}
		return badField("", "", "the body is not the JSON object that is expected: %v", err)
	}
	return nil
}

// protected lets pages of other origins press no button of h, and says so in the form of
// all other answers.
func protected(h http.Handler) http.Handler {
	origin := http.NewCrossOriginProtection()
	origin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writeProblem(w, &problem{Message: "a page of another origin may not press buttons here", status: http.StatusForbidden})
	}))
	return origin.Handler(h)
}

func writeProblem(w http.ResponseWriter, err error) {
	p, ok := errors.AsType[*problem](err)
	if !ok { // What the visitor asks for does not go with what is there.
		p = &problem{Message: err.Error(), status: http.StatusConflict}
	}
	writeJSON(w, p.status, map[string]*problem{"error": p})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

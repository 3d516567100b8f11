package replicas

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"math"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync/atomic"
	"time"
)

// The fields of requests and responses between replicas. Nobody else gets them, and from nobody else they are taken.
const (
	prefix         = "X-Shaper-Replica-"
	callField      = prefix + "Call"      // the ID of the call
	teamField      = prefix + "Team"      // in base64
	keeperField    = prefix + "Keeper"    // to which the call is passed
	signatureField = prefix + "Signature" // of the request, with the secret of that
	leftField      = prefix + "Left"      // in a 102: the call leaves
	byField        = prefix + "By"        // in each response to a call that was passed: the ID of the replica
	movedField     = prefix + "Moved"     // in a 421: the ID of the replica, which has not sent the call, and does not have the line
)

// calls are the calls of a replica. Its lock guards them.
type calls struct {
	ways    map[*way]struct{}
	onward  uint64          // calls that have been passed on
	waiting int             // calls for which no replica has the line
	passed  map[string]*way // by the ID of the call, those that other replicas have passed here
	left    map[string]struct{}
	leftOld map[string]struct{} // those of the minute before
	turned  time.Time           // when left became leftOld
	bodies  int64               // bytes that are kept
}

// errMoved is why a call leaves the line, or is not sent: it goes to the replica that has the line. A gateway looks for its method.
var errMoved error = movedError{}

type movedError struct{}

func (movedError) Error() string { return "replicas: another replica has the line" }

// Moved says that nothing has become of the call, and that it goes on elsewhere.
func (movedError) Moved() {}

// A way is one way of a call: through the line here, or to another replica. It is the ResponseWriter of that.
type way struct {
	http.ResponseWriter
	r    *Replica
	to   string // the ID of the replica whose line it is; this one's: here
	team string
	call string // the ID of a call that was passed here; "": it has come in here
	body *body  // of a call that has come in here

	timeouts *timeouts // likewise
	cancel   context.CancelCauseFunc

	isRecalled bool // for the goroutine of run

	at       place // the lock of the Replica guards it
	wasSent  bool  // likewise: to the provider
	hasBegun bool  // the response
	isMute   bool  // what is written is dropped, as the call has moved
}

type place int

const (
	inLine place = iota
	hasLeft
	hasAnswer // a response has begun; of this replica's line, or of the provider
	hasMoved
)

type wayKey struct{}

// Wrap returns a handler in front of a line, such as a gateway, whose calls it passes on while another replica has the line.
func (r *Replica) Wrap(line http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		p, isPassed, ok := r.passedIn(req)
		switch {
		case !isPassed:
			r.serve(w, req, line)
		case ok:
			r.servePassed(w, req, line, p)
		default:
			r.sendBack(w)
		}
	})
}

// TeamOf returns the team of a call that has come through Wrap, or that another replica has passed here: its token is gone.
func (r *Replica) TeamOf(req *http.Request) (team string, ok bool) {
	w, ok := req.Context().Value(wayKey{}).(*way)
	if !ok || w.r != r {
		return "", false
	}
	return w.team, true
}

// Leaves returns an error if a call must not be sent to the provider, as this replica does not have the line. It is called
// right before that, and tells the replica that has passed the call here.
func (r *Replica) Leaves(_ http.ResponseWriter, req *http.Request) error {
	w, ok := req.Context().Value(wayKey{}).(*way)
	if !ok || w.r != r {
		w = &way{r: r}
	}
	if w.call != "" {
		if !w.leaves() {
			return errMoved
		}
		h := w.ResponseWriter.Header()
		h.Set(leftField, "1")
		w.ResponseWriter.WriteHeader(http.StatusProcessing)
		h.Del(leftField)
	}
	if !w.leaves() { // Writing may have taken long.
		return errMoved
	}
	return nil
}

// leaves reports whether the call may be sent now.
func (w *way) leaves() bool {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	if w.wasSent = w.at != hasMoved && w.r.servesLocked(); !w.wasSent {
		w.at = hasMoved
		return false
	}
	w.at = hasLeft
	return true
}

// servesLocked reports whether calls may leave here now.
func (r *Replica) servesLocked() bool {
	return r.isApart || r.isOpen && time.Now().Before(r.until)
}

// moveLocked moves all calls that are in line here.
func (r *Replica) moveLocked() {
	for w := range r.ways {
		if w.to == r.id {
			w.moveLocked()
		}
	}
}

func (w *way) moveLocked() {
	if w.at == inLine {
		w.at = hasMoved
		w.cancel(errMoved)
	}
}

func (w *way) move() {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	w.moveLocked()
}

// end ends a way, and reports where the call was.
func (w *way) end() place {
	r := w.r
	w.cancel(nil)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.ways, w)
	return w.at
}

// serve serves a call that has come in here, wherever the line is.
func (r *Replica) serve(w http.ResponseWriter, req *http.Request, line http.Handler) {
	until := time.Time{}
	if wait := r.config.Wait(); wait > 0 {
		until = time.Now().Add(wait)
	}
	for field := range req.Header {
		if strings.HasPrefix(field, prefix) {
			delete(req.Header, field)
		}
	}
	team, ok := r.config.Team(req)
	if !ok {
		line.ServeHTTP(w, req)
		return
	}
	body := r.keep(req)
	defer body.over()
	first, id := req.Clone(req.Context()), rand.Text()
	header := w.Header().Clone()
	timeouts := timeoutsOf(w, req)
	for asked := 0; ; {
		to, seq, ok := r.whereto(req.Context(), timeouts, body, until, asked)
		if !ok {
			timeouts.reads()
			timeouts.writes()
			req.Body = body.reader() // Whoever responds may let the call go on elsewhere.
			r.refuse(w, req)
			return
		}
		asked = seq
		next := &way{ResponseWriter: w, r: r, to: to.ID, team: team, body: body, timeouts: timeouts}
		isOver := false
		if next.to == r.id {
			isOver = r.serveHere(next, req, line)
		} else {
			isOver = r.pass(next, req, to, id)
		}
		if isOver {
			return
		}
		clear(w.Header())
		maps.Copy(w.Header(), header)
		*req = *first.Clone(first.Context())
		switch again, isBroken := body.readable(); {
		case isBroken: // The line's handler knows what to say of it.
			r.serveHere(&way{ResponseWriter: w, r: r, to: r.id, team: team, body: body, at: hasAnswer}, req, line)
			return
		case !again:
			r.config.Unavailable(w, req, http.StatusBadGateway, 0)
			return
		}
	}
}

// statusGone is the status of a call whose caller has gone.
const statusGone = 499

// refuse responds to a call for which no replica has had the line in time.
func (r *Replica) refuse(w http.ResponseWriter, req *http.Request) {
	if req.Context().Err() == context.Canceled {
		w.WriteHeader(statusGone)
		return
	}
	r.config.Unavailable(w, req, http.StatusServiceUnavailable, lease)
}

// whereto returns the replica whose line a call is to enter, or not ok. asked is how often the store had been asked when the call was
// passed to a replica in vain: that is not tried again before the next time.
func (r *Replica) whereto(ctx context.Context, t *timeouts, body *body, until time.Time, asked int) (to told, seq int, ok bool) {
	var timer <-chan time.Time
	r.mu.Lock()
	defer r.mu.Unlock()
	for waits := false; ; waits = true {
		switch {
		case r.servesLocked():
			return told{ID: r.id}, r.seq, true
		case r.keeper.ID != "" && r.keeper.ID != r.id && r.seq > asked:
			return r.keeper, r.seq, true
		case ctx.Err() != nil, r.isClosed, !until.IsZero() && !time.Now().Before(until):
			return told{}, r.seq, false
		}
		if !waits {
			if r.waiting++; r.waiting == 1 || asked > 0 {
				r.askSoon()
			}
			defer func() { r.waiting-- }()
			if !until.IsZero() {
				t := time.NewTimer(time.Until(until))
				defer t.Stop()
				timer = t.C
			}
		}
		news := r.news
		r.mu.Unlock()
		t.suspend(body)
		select {
		case <-news:
		case <-timer:
		case <-ctx.Done():
		}
		r.mu.Lock()
	}
}

// serveHere lets a call enter the line here, and reports whether that was all.
func (r *Replica) serveHere(w *way, req *http.Request, line http.Handler) (isOver bool) {
	outer := req.Context()
	ctx, cancel := context.WithCancelCause(context.WithValue(outer, wayKey{}, w))
	w.cancel = cancel
	r.mu.Lock()
	r.ways[w] = struct{}{}
	if !r.servesLocked() {
		w.moveLocked()
	}
	r.mu.Unlock()
	defer w.end()
	w.timeouts.reads()
	w.timeouts.writes()
	// Handlers around this one may look at the request that they have made, as Caddy's do.
	*req = *req.WithContext(ctx)
	if w.body != nil {
		req.Body = w.body.reader()
	}
	line.ServeHTTP(w, req)
	*req = *req.WithContext(outer)
	return w.end() != hasMoved
}

// A passed is what another replica says of a call that it has passed on.
type passed struct{ call, team string }

// passedIn returns what the header of a request says, and removes it. ok reports whether the replica that has the line has signed it.
func (r *Replica) passedIn(req *http.Request) (p passed, isPassed, ok bool) {
	signature, err := hex.DecodeString(req.Header.Get(signatureField))
	if isPassed = req.Header.Get(signatureField) != ""; !isPassed {
		return p, false, false
	}
	r.mu.Lock()
	secret, open := r.secret, r.servesLocked() && r.isOpen
	r.mu.Unlock()
	uri := req.RequestURI
	if uri == "" {
		uri = req.URL.RequestURI()
	}
	team, badTeam := base64.StdEncoding.DecodeString(req.Header.Get(teamField))
	p = passed{req.Header.Get(callField), string(team)}
	isSigned := err == nil && badTeam == nil && open && req.Header.Get(keeperField) == r.id &&
		hmac.Equal(signature, sign(secret, req.Method, uri, p.team, p.call, r.id))
	for field := range req.Header {
		if strings.HasPrefix(field, prefix) {
			delete(req.Header, field)
		}
	}
	return p, true, isSigned
}

// sign returns the signature of a call that is passed on.
func sign(secret, method, uri, team, call, keeper string) []byte {
	mac := hmac.New(sha256.New, []byte(secret))
	fmt.Fprintf(mac, "%q %q %q %q %q", method, uri, team, call, keeper)
	return mac.Sum(nil)
}

// sendBack says that the call has not been sent, and that this replica does not have the line.
func (r *Replica) sendBack(w http.ResponseWriter) {
	w.Header().Set(movedField, r.id)
	w.WriteHeader(http.StatusMisdirectedRequest)
}

// servePassed serves a call that another replica has passed here. A call that comes again takes the place of the one that is in
// line, as its connection has broken; one that has left is refused.
func (r *Replica) servePassed(w http.ResponseWriter, req *http.Request, line http.Handler, p passed) {
	w.Header().Set(byField, r.id)
	here := &way{ResponseWriter: w, r: r, to: r.id, team: p.team, call: p.call, cancel: func(error) {}}
	if !r.enter(here) {
		r.config.Unavailable(w, req, http.StatusBadGateway, 0)
		return
	}
	defer r.exit(here)
	header := w.Header().Clone()
	if !r.serveHere(here, req, line) {
		clear(w.Header())
		maps.Copy(w.Header(), header)
		r.sendBack(w)
	}
}

// lateness is for how long the IDs of calls that have left are known at least.
const lateness = time.Minute

// enter notes the ID of a call that was passed here, and reports whether the call may enter the line.
func (r *Replica) enter(w *way) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); now.Sub(r.turned) >= lateness {
		r.leftOld, r.left, r.turned = r.left, map[string]struct{}{}, now
	}
	_, hasLeftLate := r.left[w.call]
	_, hasLeftEarly := r.leftOld[w.call]
	if hasLeftLate || hasLeftEarly {
		return false
	}
	if before := r.passed[w.call]; before != nil {
		if before.moveLocked(); before.wasSent {
			return false
		}
	}
	r.passed[w.call] = w
	return true
}

// exit notes that a call that was passed here has ended.
func (r *Replica) exit(w *way) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.passed[w.call] != w {
		return
	}
	delete(r.passed, w.call)
	if w.wasSent {
		r.left[w.call] = struct{}{}
	}
}

// pass passes a call to another replica, and reports whether that was all.
func (r *Replica) pass(w *way, req *http.Request, to told, id string) (isOver bool) {
	ctx, cancel := context.WithCancelCause(req.Context())
	w.cancel = cancel
	r.mu.Lock()
	r.ways[w] = struct{}{}
	r.onward++
	r.mu.Unlock()
	defer w.end()
	w.timeouts.reads()
	out := req.WithContext(ctx)
	out.Body = w.body.reader()
	w.timeouts.suspend(w.body)
	header := w.Header().Clone()
	clear(w.Header())
	var failed error
	proxy := httputil.ReverseProxy{
		Transport: r.transport, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
		Rewrite: func(p *httputil.ProxyRequest) {
			for _, field := range [...]string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
				if values, ok := p.In.Header[field]; ok {
					p.Out.Header[field] = values
				}
			}
			p.Out.Header.Del("Expect") // It is for the way from the caller.
			p.Out.URL.Scheme, p.Out.URL.Host, p.Out.URL.RawQuery = "http", to.Address, p.In.URL.RawQuery
			p.Out.Header.Set(callField, id)
			p.Out.Header.Set(teamField, base64.StdEncoding.EncodeToString([]byte(w.team)))
			p.Out.Header.Set(keeperField, to.ID)
			p.Out.Header.Set(signatureField, hex.EncodeToString(sign(to.Secret, p.Out.Method, p.Out.URL.RequestURI(), w.team, id, to.ID)))
		},
		ModifyResponse: func(response *http.Response) error {
			if by := response.Header.Get(movedField); by != "" && response.StatusCode == http.StatusMisdirectedRequest {
				var err error
				if by != to.ID {
					err = fmt.Errorf("its address leads to another replica, and each must advertise one of its own (to this replica itself: %v)", by == r.id)
				}
				r.cameBack(to, err, true)
				return errMoved
			}
			if by := response.Header.Get(byField); by != to.ID && w.hasStrayed() {
				err := fmt.Errorf("its address leads to no replica, but to a server that answers with status %d", response.StatusCode)
				r.cameBack(to, err, true)
				return err
			}
			response.Header.Del(byField)        // It would be in the response of an upgrade, which is not written through the way.
			for field, values := range header { // What handlers in front have set, unless those of the other replica have set it.
				if response.Header[field] == nil {
					w.Header()[field] = values
				}
			}
			if !w.answers() {
				return errMoved
			}
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) { failed = err },
	}
	proxy.ServeHTTP(w, out)
	at := w.end()
	if failed == nil {
		return true
	}
	maps.Copy(w.Header(), header)
	switch {
	case req.Context().Err() != nil:
		r.refuse(w.ResponseWriter, req)
		return true
	case errors.Is(failed, errMoved) || at == hasMoved:
		return false
	case at == inLine:
		if _, isBroken := w.body.readable(); !isBroken {
			r.cameBack(to, failed, false)
		}
		return false
	}
	r.config.Unavailable(w.ResponseWriter, req, http.StatusBadGateway, 0)
	return true
}

// timeouts are those of the server of a call, from which the time in line is not taken off, as in a middleware of package shaper. Nil:
// there are none. Errors mean that an outer ResponseWriter hides the deadlines, and nothing can be done.
type timeouts struct {
	*http.ResponseController
	read, write time.Duration
	isReadOff   bool // by the goroutine of the call, while nobody reads the body
	isWriteOff  atomic.Bool
}

func timeoutsOf(w http.ResponseWriter, req *http.Request) *timeouts {
	server, ok := req.Context().Value(http.ServerContextKey).(*http.Server)
	if !ok || server.ReadTimeout <= 0 && server.WriteTimeout <= 0 {
		return nil
	}
	return &timeouts{ResponseController: http.NewResponseController(w), read: server.ReadTimeout, write: server.WriteTimeout}
}

// suspend begins the time in line.
func (t *timeouts) suspend(body *body) {
	if t == nil {
		return
	}
	if t.write > 0 && !t.isWriteOff.Swap(true) {
		_ = t.SetWriteDeadline(time.Time{})
	}
	// Once the body has been read, net/http reads to watch the connection, and a deadline would cancel the call.
	if t.read > 0 && body.isUntouched() {
		t.isReadOff = true
		_ = t.SetReadDeadline(time.Time{})
	}
}

// reads says that the body is read from now on.
func (t *timeouts) reads() {
	if t != nil && t.isReadOff {
		t.isReadOff = false
		_ = t.SetReadDeadline(time.Now().Add(t.read))
	}
}

// writes says that the call leaves the line, or is answered.
func (t *timeouts) writes() {
	if t != nil && t.isWriteOff.Swap(false) {
		_ = t.SetWriteDeadline(time.Now().Add(t.write))
	}
}

// cameBack notes that a call has come back from a replica that does not have the line, or why it can't be passed there. Unless that is
// plain, the replica may be ending, and the log has it only if it goes on when the store has been asked once more.
func (r *Replica) cameBack(from told, why error, isPlain bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if why != nil {
		switch {
		case r.astray == nil && !isPlain:
			r.strayed = r.seq
		case r.astray == nil || r.seq > r.strayed:
			r.strayed = math.MaxInt
			r.config.Log.Warn("calls can't be passed to the replica that has the line", "address", from.Address, "error", why)
		}
		r.astray = fmt.Errorf("replicas: calls can't be passed to %q, which has the line: %w", from.Address, why)
	}
	if r.err != nil && r.keeper.ID == from.ID { // Whether it still has the line can't be asked.
		r.keeper = told{}
	}
}

// hasStrayed reports whether a response is of somebody who is no replica, as the replica that has the line has said nothing before. What
// has become of the call is not known then.
func (w *way) hasStrayed() bool {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	if w.at != inLine {
		return false
	}
	w.at = hasLeft
	return true
}

// answers notes that a response begins, and reports whether it counts: not if the call has moved.
func (w *way) answers() bool {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	if w.at == hasMoved {
		return false
	}
	w.at = hasAnswer
	if w.to != w.r.id {
		w.r.astray = nil
	}
	return true
}

// WriteHeader begins the response, unless the call has moved.
func (w *way) WriteHeader(status int) {
	h := w.Header()
	isInformational := status < 200 && status != http.StatusSwitchingProtocols
	switch {
	case w.hasBegun || w.isMute:
		return
	case isInformational && h.Get(leftField) != "":
		w.timeouts.writes()
		w.r.mu.Lock()
		defer w.r.mu.Unlock()
		if w.at == inLine {
			w.at = hasLeft
		}
		return
	case !isInformational:
		if w.hasBegun = w.answers(); !w.hasBegun {
			w.isMute = true
			return
		}
		if w.timeouts.writes(); w.body != nil {
			w.body.over()
		}
	}
	for field := range h {
		if strings.HasPrefix(field, prefix) {
			delete(h, field)
		}
	}
	if w.call != "" {
		h.Set(byField, w.r.id)
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *way) Write(p []byte) (int, error) {
	if w.begin(); w.isMute {
		return len(p), nil
	}
	return w.ResponseWriter.Write(p)
}

func (w *way) begin() {
	if !w.hasBegun {
		w.WriteHeader(http.StatusOK)
	}
}

// FlushError is for [http.ResponseController].
func (w *way) FlushError() error {
	if w.begin(); w.isMute {
		return nil
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Flush implements [http.Flusher].
func (w *way) Flush() { _ = w.FlushError() }

// SetReadDeadline is for [http.ResponseController]. A call that has moved may still have a body to read.
func (w *way) SetReadDeadline(t time.Time) error {
	w.r.mu.Lock()
	at := w.at
	w.r.mu.Unlock()
	if at == hasMoved {
		return nil
	}
	return http.NewResponseController(w.ResponseWriter).SetReadDeadline(t)
}

// Unwrap is for [http.ResponseController].
func (w *way) Unwrap() http.ResponseWriter { return w.ResponseWriter }

package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"example.com/leakybucket/internal/limitwords"
	"example.com/leakybucket/shaper"
)

// A trial is what came of sending the burst once.
type trial struct {
	tally
	arrived     []time.Time   // when requests arrived at the server that the burst was sent to
	reached     []time.Time   // when they reached the upstream, by its own record
	disconnects []time.Time   // when impatient clients disconnected, by their own record
	impatient   int           // clients that disconnect if they have to wait
	requests    []*requestLog // what the shaper did with each; nil without a shaper
	missedUnits float64       // Stats.Missed: units lost because departures were later than Slack
}

// span returns the instants of the first arrival and of the last event. There
// must be an arrival.
func (t trial) span() (begin, end time.Time) {
	begin = t.arrived[0]
	for _, instants := range [][]time.Time{t.arrived, t.reached, t.disconnects} {
		if n := len(instants); n > 0 && instants[n-1].After(end) {
			end = instants[n-1]
		}
	}
	return begin, end
}

// showBurst sends the burst twice, directly to the upstream and through a proxy
// with a shaper on a free port, and prints the results. It returns the exit
// status for -once.
func showBurst(ctx context.Context, t *terminal, c config, f *fragileUpstream) (status int, err error) {
	info := newLimitsInfo(c.limits)
	introduceBurst(t, info, f.size)

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return exitFailed, err
	}
	p, err := startProxy(l, c.limits, f.url)
	if err != nil {
		_ = l.Close()
		return exitFailed, err
	}
	defer p.close()

	sends := sendTimes(c.burst, burstSpan(c.burst, f.size))
	t.say("Sending %d requests directly to the upstream ...", c.burst)
	direct, err := sendDirect(ctx, f, sends)
	if err != nil {
		return exitFailed, err
	}
	impatient := chooseImpatient(c.burst, c.vanish, info, &p.requests)
	t.say("Sending %d requests through the shaper%s ...\n", c.burst, announce(info, sends, len(impatient)))
	shaped, err := sendShaped(ctx, t, f, p, sends, impatient)
	if err != nil {
		return exitFailed, err
	}

	t.say("%s", burstChart(t, info, direct, shaped))
	t.say("%s", burstTable(t, info, direct, shaped))
	faults := judgeBurst(info, f.size, direct, shaped)
	t.say("%s", burstVerdict(t, info, direct, shaped, faults))
	if len(faults) > 0 {
		return exitFailed, nil
	}
	if c.svg != "" {
		if err := os.WriteFile(c.svg, []byte(burstSVG(info, shaped)), 0o644); err != nil {
			return exitFailed, err
		}
		t.say("The picture is in %s.", c.svg)
	}
	return exitOK, nil
}

// introduceBurst prints what is about to be shown.
func introduceBurst(t *terminal, info limitsInfo, s capacity) {
	t.say("%s\n", t.coloured(bold, "Requests arrive in a burst and leave evenly spaced."))
	printLimits(t, info.limits)
	t.say("  upstream   %s, %s for each request: up to %s/s; answers 503 when\n"+
		"             all workers are busy\n",
		countOf(int(s.workers), "worker"), limitwords.Seconds(s.serviceTime.Seconds()), formatDecimal(s.perSecond()))
}

// printLimits prints the limits, and below them what they mean, line by line.
func printLimits(t *terminal, l shaper.Limits) {
	const indent = "\n             "
	t.say("  limits     %s:%s%s", l, indent, strings.Join(limitwords.Of(l), indent))
}

// announce returns what to print about a burst before it is sent through the
// shaper: how many clients are impatient, and how long a run of more than a
// second takes.
func announce(info limitsInfo, sends []time.Duration, impatient int) string {
	text := ""
	if impatient > 0 {
		text = fmt.Sprintf(", %d impatient", impatient)
	}
	if info.unlimited || len(sends) == 0 {
		return text
	}
	span := sends[len(sends)-1].Seconds()
	served := min(float64(len(sends)), float64(info.fits())+info.rate*span)
	wait := (served - float64(info.atOnce)) * (1 - float64(impatient)/float64(len(sends)))
	if seconds := max(span, wait*info.interval); seconds >= 1 {
		text += fmt.Sprintf("; takes about %s", limitwords.Seconds(float64(int(seconds*10+0.5))/10))
	}
	return text
}

func sendDirect(ctx context.Context, f *fragileUpstream, sends []time.Duration) (trial, error) {
	f.reached.start()
	results, err := sendBurst(ctx, burstURL(f.url), sends, nil)
	reached := f.reached.stop()
	return trial{tally: countResults(results), arrived: reached, reached: reached}, err
}

func sendShaped(ctx context.Context, t *terminal, f *fragileUpstream, p *proxy, sends []time.Duration, impatient map[int]*impatientClient) (trial, error) {
	target, err := url.Parse(p.url)
	if err != nil {
		return trial{}, err
	}
	stopStatus := watchShaper(t, p.shaper, &p.upstreamErrors)
	defer stopStatus()
	f.reached.start()
	p.requests.startRecording()
	results, err := sendBurst(ctx, burstURL(target), sends, impatient)
	if err != nil {
		return trial{}, err // Some requests may still be in progress.
	}
	shaped := trial{tally: countResults(results), impatient: len(impatient), requests: p.requests.stopRecording()}
	shaped.reached = f.reached.stop()
	shaped.missedUnits = p.shaper.Stats().Missed
	for _, entry := range byArrival(shaped.requests) {
		shaped.arrived = append(shaped.arrived, entry.arrived)
		if !entry.disconnected.IsZero() {
			shaped.disconnects = append(shaped.disconnects, entry.disconnected)
		}
	}
	slices.SortFunc(shaped.disconnects, time.Time.Compare)
	return shaped, nil
}

// A capacity is how much load the fragile upstream can take.
type capacity struct {
	workers     int64
	serviceTime time.Duration // of each request
}

// perSecond returns how many requests it can serve per second.
func (s capacity) perSecond() float64 { return float64(s.workers) / s.serviceTime.Seconds() }

// capacityFor returns the capacity of an upstream that can serve four times the
// shaped rate, and in addition what may leave at once. That is too little for
// the whole burst, and leaves enough spare workers behind the shaper when a busy
// machine delays requests by up to three service times. The service time is the
// longest of three with which the burst still has twice as many requests as
// there are workers.
func capacityFor(info limitsInfo, burst int) capacity {
	if info.unlimited {
		return capacity{workers: 8, serviceTime: 100 * time.Millisecond}
	}
	if burst == 0 {
		burst = defaultBurst
	}
	var s capacity
	for _, service := range []time.Duration{100 * time.Millisecond, 50 * time.Millisecond, 25 * time.Millisecond} {
		workers := float64(info.atOnce) + math.Ceil(4*info.rate*service.Seconds())
		s = capacity{workers: int64(min(workers, math.MaxInt32)), serviceTime: service}
		if 2*s.workers <= int64(burst) {
			break
		}
	}
	return s
}

// A fragileUpstream is a real HTTP server on loopback with few workers, a fixed
// service time and no backlog: it answers 503 while all workers are busy, and
// asks for a pause with that if it has been slowed. It records when each request
// reached it.
type fragileUpstream struct {
	loopback
	size    capacity
	reached instants

	busy    atomic.Int64
	slowed  atomic.Bool   // each request takes slowdown times as long
	refused atomic.Uint64 // requests that found no worker
}

// slowdown is how many times the usual service time a request takes while the
// upstream is slow. At the full rate behind a shaper all workers are then busy,
// because [capacityFor] gives an upstream four times the workers that it needs.
const slowdown = 10

// serviceTime returns how long a request takes now.
func (f *fragileUpstream) serviceTime() time.Duration {
	if f.slowed.Load() {
		return slowdown * f.size.serviceTime
	}
	return f.size.serviceTime
}

// startFragileUpstream starts an upstream on a free port. The caller must close it.
func startFragileUpstream(s capacity) (*fragileUpstream, error) {
	f := &fragileUpstream{size: s}
	var err error
	f.loopback, err = startLoopback(f)
	return f, err
}

// ServeHTTP serves a request if there is a worker for it.
func (f *fragileUpstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.reached.note(time.Now())
	if !f.takeWorker() {
		f.refused.Add(1)
		if f.slowed.Load() {
			w.Header().Set("Retry-After", "1")
		}
		http.Error(w, "the upstream has no worker left", http.StatusServiceUnavailable)
		return
	}
	defer f.busy.Add(-1)
	// A worker is busy for the whole service time, even if the client has
	// disconnected: that is what makes the upstream fragile.
	time.Sleep(f.serviceTime())
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, "served by the fragile upstream\n")
}

// takeWorker reserves a worker and reports whether one was free. Compare-and-swap
// keeps a request that gets no worker out of the count at all times.
func (f *fragileUpstream) takeWorker() bool {
	for {
		busy := f.busy.Load()
		if busy >= f.size.workers {
			return false
		}
		if f.busy.CompareAndSwap(busy, busy+1) {
			return true
		}
	}
}

// A requestLog records when the shaper did what with one request. An instant is
// zero if its event did not happen. The log is a value of the request's context,
// and only the goroutine that serves the request writes to it.
type requestLog struct {
	arrived   time.Time // just before the middleware
	enqueued  time.Time // when it entered the line
	departed  time.Time
	refused   time.Time
	reason    error // of the refusal
	waiting   int   // requests in line just after it entered the line or was refused
	abandoned time.Time

	client       *impatientClient // nil: a patient client
	disconnected time.Time        // when the client disconnected; written by stopRecording
}

// admitted returns when a request entered the line, or, if it did not have to
// wait, when it left.
func (r *requestLog) admitted() time.Time {
	if r.enqueued.IsZero() {
		return r.departed
	}
	return r.enqueued
}

type requestLogKey struct{}

// requestLogOf returns the log of the request with that context, or nil.
func requestLogOf(ctx context.Context) *requestLog {
	r, _ := ctx.Value(requestLogKey{}).(*requestLog)
	return r
}

// traceRequests returns hooks that record the shaper's own instants.
func traceRequests() *shaper.Trace {
	write := func(set func(*requestLog, shaper.Event)) func(context.Context, shaper.Event) {
		return func(ctx context.Context, e shaper.Event) {
			if r := requestLogOf(ctx); r != nil {
				set(r, e)
			}
		}
	}
	return &shaper.Trace{
		Enqueued: write(func(r *requestLog, e shaper.Event) {
			r.enqueued, r.waiting = e.At, e.Waiting
			r.client.startWaiting(e.Waiting)
		}),
		Departed: write(func(r *requestLog, e shaper.Event) {
			r.departed = e.At
			r.client.stopWaiting()
		}),
		Refused:   write(func(r *requestLog, e shaper.Event) { r.refused, r.reason, r.waiting = e.At, e.Err, e.Waiting }),
		Abandoned: write(func(r *requestLog, e shaper.Event) { r.abandoned = e.At }),
	}
}

// requestLogs keeps the logs of all requests that arrive between startRecording
// and stopRecording, and of no others, for the same reason as instants.
type requestLogs struct {
	mu         sync.Mutex
	recording  bool
	all        []*requestLog
	impatient  map[string]*impatientClient // by the client's address
	inProgress sync.WaitGroup              // the recorded requests that have not ended
}

func (b *requestLogs) startRecording() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.recording, b.all, b.impatient = true, nil, map[string]*impatientClient{}
}

// expectImpatient announces that requests from that address are of that client.
func (b *requestLogs) expectImpatient(from string, c *impatientClient) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.impatient[from] = c
}

// add adds the log of a request from that address, and returns the function to
// call when the request has ended.
func (b *requestLogs) add(r *requestLog, from string) (end func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.recording {
		return func() {}
	}
	r.client = b.impatient[from]
	b.all = append(b.all, r)
	b.inProgress.Add(1)
	return b.inProgress.Done
}

// stopRecording waits until all recorded requests have ended, and returns their
// logs. A request whose client has disconnected may end a little later than the
// last response.
func (b *requestLogs) stopRecording() []*requestLog {
	b.mu.Lock()
	b.recording = false
	b.mu.Unlock()
	b.inProgress.Wait()
	for _, r := range b.all {
		r.disconnected = r.client.disconnectedAt()
	}
	return b.all
}

// byArrival returns requests in the order in which they arrived.
func byArrival(requests []*requestLog) []*requestLog {
	return slices.SortedFunc(slices.Values(requests), func(a, b *requestLog) int { return a.arrived.Compare(b.arrived) })
}

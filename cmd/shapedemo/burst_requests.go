package main

import (
	"context"
	"slices"
	"sync"
	"time"

	"example.com/leakybucket/shaper"
)

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

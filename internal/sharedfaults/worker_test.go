package sharedfaults_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper"
)

// An order is what a test tells a worker, as a line of JSON on its standard input. The
// worker carries out one after the other, and answers each with a line of its output.
type order struct {
	Do string // one of those below

	Rate  float64 // of setLimits
	Burst int
}

const (
	begin     = "begin"     // let requests come
	quiet     = "quiet"     // let no more requests come
	tell      = "tell"      // nothing but the answer
	setLimits = "setLimits" // change Rate and Burst
	shutdown  = "shutdown"  // Shutdown
)

// A report is the answer of a worker to an order.
type report struct {
	Err    string // of the order; "" if there was none
	Stats  shaper.Stats
	Broken string         // Stats.Bucket.Err, which JSON can't carry
	Other  string         // a call returned an error that no call should; "" if none did
	Errors map[string]int // of the Bucket, and how often each was returned

	Stalled time.Duration // for how long it stood still, or its calls had no answer
	Batch   int64         // the most cost units that it has asked for at once
}

// unexpected returns the errors of the Bucket but for those of calls that had no answer in
// time, as on a busy machine any call may be too slow.
func (r report) unexpected() map[string]int {
	rest := maps.Clone(r.Errors)
	maps.DeleteFunc(rest, func(text string, _ int) bool {
		return strings.HasSuffix(text, context.DeadlineExceeded.Error()) || strings.HasSuffix(text, os.ErrDeadlineExceeded.Error())
	})
	return rest
}

// A worker is one of the processes that share a bucket.
type worker struct {
	plan   plan
	shaper *shaper.Shaper
	log    *os.File
	epoch  time.Time // an instant of this process
	wall   int64     // what the clock of the machine showed then, in nanoseconds since 1970

	quiet    atomic.Bool
	arrivals sync.WaitGroup
	other    atomic.Pointer[string]
	bucket   *observed
	watch    realtime.Watch
}

// work is the main function of a worker. It ends when its standard input does, so that no
// worker outlives its test.
func work(text string) {
	w := &worker{}
	if err := json.Unmarshal([]byte(text), &w.plan); err != nil {
		panic(err)
	}
	w.epoch, w.wall = sameInstant()
	go w.watch.Run()
	var err error
	if w.log, err = os.OpenFile(w.plan.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666); err != nil {
		panic(err)
	}
	bucket, closeBucket, err := openBucket(w.plan)
	if err != nil {
		panic(err)
	}
	w.bucket = &observed{Bucket: bucket, errors: map[string]int{}}
	if w.shaper, err = shaper.New(w.plan.limits(), w.plan.options(w.bucket, w.trace())...); err != nil {
		panic(err)
	}
	answers := json.NewEncoder(os.Stdout)
	orders := bufio.NewScanner(os.Stdin)
	for err := error(nil); answers.Encode(w.report(err)) == nil && orders.Scan(); {
		var o order
		if err := json.Unmarshal(orders.Bytes(), &o); err != nil {
			panic(err)
		}
		err = w.obey(o)
	}
	w.shaper.Close()
	closeBucket()
}

// sameInstant returns an instant of this process, and what the clock of the machine, which
// all processes share, showed at it. [time.Now] reads one clock after the other and may be
// interrupted between, so the middle one of many attempts counts.
func sameInstant() (time.Time, int64) {
	epoch := time.Now()
	attempts := make([]int64, 201)
	for i := range attempts {
		now := time.Now()
		attempts[i] = now.UnixNano() - int64(now.Sub(epoch))
	}
	slices.Sort(attempts)
	return epoch, attempts[len(attempts)/2]
}

// trace returns hooks that write each request down when it ends.
func (w *worker) trace() *shaper.Trace {
	write := func(o outcome, e shaper.Event) {
		// One write for each: a worker that is killed has written all that has left.
		line := fmt.Appendf(nil, "%c %d %d\n", o, w.wall+int64(e.At.Sub(w.epoch)), int64(e.Waited))
		if _, err := w.log.Write(line); err != nil {
			panic(err)
		}
	}
	return &shaper.Trace{
		Departed:  func(_ context.Context, e shaper.Event) { write(departed, e) },
		Abandoned: func(_ context.Context, e shaper.Event) { write(abandoned, e) },
		Refused: func(_ context.Context, e shaper.Event) {
			if errors.Is(e.Err, shaper.ErrUnavailable) {
				write(unavailable, e)
				return
			}
			write(refused, e)
		},
	}
}

func (w *worker) report(err error) report {
	r := report{Stats: w.shaper.Stats(), Errors: w.bucket.returned()}
	r.Stalled = w.watch.Total() + w.bucket.calls.total()
	r.Batch = w.bucket.longestBatch()
	if err != nil {
		r.Err = err.Error()
	}
	if broken := r.Stats.Bucket.Err; broken != nil {
		r.Broken, r.Stats.Bucket.Err = broken.Error(), nil
	}
	if other := w.other.Load(); other != nil {
		r.Other = *other
	}
	return r
}

func (w *worker) obey(o order) error {
	switch o.Do {
	case begin:
		w.begin()
	case quiet:
		w.quiet.Store(true)
		w.arrivals.Wait()
	case setLimits:
		l := w.plan.limits()
		l.Rate, l.Burst = rate.Limit(o.Rate), o.Burst
		return w.shaper.SetLimits(l)
	case shutdown:
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		return w.shaper.Shutdown(ctx)
	case tell:
	default:
		return fmt.Errorf("no such order: %q", o.Do)
	}
	return nil
}

// begin lets requests come as the plan says.
func (w *worker) begin() {
	for range w.plan.Waiters {
		w.arrivals.Go(func() {
			for !w.quiet.Load() {
				w.request()
			}
		})
	}
	if w.plan.Arrivals > 0 {
		w.arrivals.Go(func() {
			first := time.Now()
			for n := 0; !w.quiet.Load(); n++ {
				time.Sleep(time.Until(first.Add(time.Duration(float64(n) / w.plan.Arrivals * float64(time.Second)))))
				w.arrivals.Go(w.request)
			}
		})
	}
}

// request sends one request through the shaper, and if it is refused waits for a while.
func (w *worker) request() {
	ctx := context.Background()
	if patience := w.patience(); patience > 0 {
		var cancel context.CancelFunc
		// Not a deadline: a request that can't meet one is refused when it comes.
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		defer time.AfterFunc(patience, cancel).Stop()
	}
	err := w.shaper.Wait(ctx)
	var refusal *shaper.RejectError
	switch {
	case err == nil, errors.Is(err, context.Canceled):
	case errors.Is(err, shaper.ErrClosed):
		w.quiet.Store(true)
	case errors.As(err, &refusal):
		if refusal.RetryAfter <= 0 {
			w.fail(fmt.Errorf("%w has no RetryAfter", err))
		}
		time.Sleep(20 * time.Millisecond)
	default:
		w.fail(err)
	}
}

func (w *worker) fail(err error) {
	text := err.Error()
	w.other.CompareAndSwap(nil, &text)
	w.quiet.Store(true)
}

// patience returns how long a request that comes now waits; 0 if it waits until it leaves.
func (w *worker) patience() time.Duration {
	if w.plan.Storm > 0 { // All storms of all workers are at the same instants.
		return w.plan.Storm - time.Duration(time.Now().UnixNano())%w.plan.Storm
	}
	return w.plan.Patience
}

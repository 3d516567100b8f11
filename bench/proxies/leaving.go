package proxies

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.com/leakybucket/bench/internal/measure"
)

// A leavingInput is requests that wait in line, of whose callers every second one leaves.
type leavingInput struct {
	Proxy string
	Rate  int           // per second
	Lead  time.Duration // from the first request to when they leave
	Line  int           // how many wait by then, about
}

func (in leavingInput) requests() int {
	return in.Line + int(float64(in.Rate)*in.Lead.Seconds())
}

// leaves reports whether the caller of a request leaves, if it still waits.
func leaves(number int) bool { return number%2 == 0 }

// A leaving is what became of the slots, and of the requests of those that had left.
type leaving struct {
	Served float64 `unit:"served-%"`       // of the slots: went to a caller that still waited
	Asked  float64 `unit:"gone-arrived-%"` // of the requests whose caller had left: came to the upstream nevertheless
}

// errNoLine is for a machine so busy that the line was gone before the callers left.
var errNoLine = errors.New("when callers left, no line waited")

// errLate is for a machine that stalled when the callers were to leave: requests that had come
// to the upstream before would seem to have come after.
var errLate = errors.New("the callers left too late")

// measureLeaving measures again, at most twice, if some requests were never answered, and with
// twice the line if it was gone too soon. HAProxy with maxconn was seen to leave some in its
// queue, once in a few runs; why is not known. While callers leave too late, it measures again
// up to ten times, each time with a longer line.
func (p *programs) measureLeaving(ctx context.Context, in leavingInput) (found leaving, err error) {
	for tries, late := 0, 0; tries < 3 && late < 10; {
		found, err = p.leave(ctx, in)
		switch {
		case errors.Is(err, errLate):
			late++
			in.Line += in.Line / 4
		case errors.Is(err, errNoLine):
			tries++
			in.Line *= 2
		case errors.Is(err, errUnanswered):
			tries++
		default:
			return found, err
		}
	}
	return found, err
}

// leave sends the requests through a proxy and closes connections.
func (p *programs) leave(ctx context.Context, in leavingInput) (leaving, error) {
	s, err := p.stage(ctx, in.Proxy, in.Rate, in.requests()+fewMore, false)
	if err != nil {
		return leaving{}, err
	}
	defer s.close()
	ctx, cancel := patience(ctx, in.requests(), in.Rate)
	defer cancel()
	w, err := gather(ctx, s.address, in.requests(), min(500*time.Microsecond, in.Lead/time.Duration(2*in.requests())))
	if err != nil {
		return leaving{}, errors.Join(err, context.Cause(ctx))
	}
	defer w.close()
	sleep(ctx, time.Until(w.began.Add(in.Lead)))
	for i, one := range w.all {
		if leaves(i + 1) {
			_ = one.conn.Close() // Its request was sent.
		}
	}
	left := time.Since(s.began)
	lineLasts := time.Duration(in.Line) * measure.Interval(float64(in.Rate))
	if late := time.Since(w.began.Add(in.Lead)); late > lineLasts/4 {
		return leaving{}, fmt.Errorf("%w: by %v", errLate, late)
	}
	if err := w.answered(ctx, leaves); err != nil {
		return leaving{}, err
	}
	// A request whose caller has gone may still be on its way to the upstream.
	sleep(ctx, 3*measure.Interval(float64(in.Rate)))
	arrivals, err := s.take()
	if err != nil {
		return leaving{}, err
	}
	return leavingOf(arrivals, left, in.requests(), in.Rate)
}

// leavingOf looks at what arrived after the callers had left.
func leavingOf(arrivals []arrival, left time.Duration, requests, rate int) (leaving, error) {
	gone, came := requests/2, 0 // their requests
	stayed, last := 0, left
	for _, a := range arrivals {
		switch {
		case leaves(a.number) && a.at <= left:
			gone--
		case leaves(a.number):
			came++
		case a.at > left:
			stayed, last = stayed+1, max(last, a.at)
		}
	}
	if stayed == 0 || gone == 0 {
		return leaving{}, fmt.Errorf("%w: %d of those that left had not been served, and %d others", errNoLine, gone, stayed)
	}
	used := 0
	for _, a := range arrivals {
		if a.at > left && a.at <= last {
			used++
		}
	}
	// A slot passes with each interval, even if nothing arrives, and with each arrival.
	slots := max((last-left).Seconds()*float64(rate), float64(used))
	return leaving{Served: 100 * float64(stayed) / slots, Asked: 100 * float64(came) / float64(gone)}, nil
}

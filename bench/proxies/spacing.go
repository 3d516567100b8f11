package proxies

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.com/leakybucket/bench/internal/measure"
)

// A spacingInput is requests that come sooner than they may leave, so that the line of
// the proxy never runs dry.
type spacingInput struct {
	Proxy  string
	Rate   int           // per second
	Lead   time.Duration // from the first arrival on, which is not measured
	Window time.Duration // how long more arrive after that
}

func (in spacingInput) requests() int {
	return int(float64(in.Rate) * (in.Lead + in.Window).Seconds())
}

// every returns the time between two requests: a good deal less than the interval.
func (in spacingInput) every() time.Duration { return measure.Interval(float64(in.Rate)) * 3 / 10 }

// A spacing is how requests arrived at the upstream. They are overtaken against the order
// of sending.
type spacing = measure.Spread

// measureSpacing sends the requests through a proxy.
func (p *programs) measureSpacing(ctx context.Context, in spacingInput) (spacing, error) {
	s, err := p.stage(ctx, in.Proxy, in.Rate, in.requests()+fewMore, false)
	if err != nil {
		return spacing{}, err
	}
	defer s.close()
	ctx, cancel := patience(ctx, in.requests(), in.Rate)
	defer cancel()
	w, err := gather(ctx, s.address, in.requests(), in.every())
	if err != nil {
		return spacing{}, errors.Join(err, context.Cause(ctx))
	}
	defer w.close()
	if err := w.answered(ctx, func(int) bool { return false }); err != nil {
		return spacing{}, err
	}
	arrivals, err := s.take()
	if err != nil {
		return spacing{}, err
	}
	if len(arrivals) != in.requests() {
		return spacing{}, fmt.Errorf("of %d requests %d arrived", in.requests(), len(arrivals))
	}
	return spacingOf(arrivals, in.Rate, in.Lead)
}

// fewMore is how many requests more than there are a line has room for.
const fewMore = 100

// spacingOf returns the figures of what arrived later than the lead.
func spacingOf(arrivals []arrival, rate int, lead time.Duration) (spacing, error) {
	if len(arrivals) < 2 {
		return spacing{}, fmt.Errorf("%d requests arrived, which have no spacing", len(arrivals))
	}
	var all []measure.Departure
	first, last := arrivals[0].at, arrivals[0].at
	for _, a := range arrivals {
		all = append(all, measure.Departure{Entered: int64(a.number), At: a.at})
		first, last = min(first, a.at), max(last, a.at)
	}
	// The one before the window begins the first spacing: without a lead, the first arrival.
	seen := measure.DeparturesWithin(first+max(lead, 1), last, measure.Interval(float64(rate)), all)
	if seen.Count() == 0 {
		return spacing{}, fmt.Errorf("all %d requests arrived within %v", len(all), lead)
	}
	return seen.Spread(), nil
}

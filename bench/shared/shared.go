// Package shared measures processes that share one rate through a Redis server: whether
// they reach it together, how evenly the merged stream of their departures leaves, how the
// slots are divided among them, and how often the server is asked. The rivals are what
// a caller that wants to wait does with a meter on Redis: it asks, sleeps for as long as
// it was told to, and asks again.
package shared

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/plot"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/run"
)

// Experiment is "shared".
var Experiment = run.Experiment{
	Name:  "shared",
	What:  "four processes and one Redis: is the rate reached, how evenly, in which shares, with how many round trips?",
	Needs: redisServer, GetIt: "Debian: apt-get install redis-server",
	Note: "Closed loop: each caller waits again as soon as it has left. Figures are of the merged departures, at the instants at which callers ran again. " +
		"share-off: the largest difference between the share of a process and an equal one, in percent of that. " +
		"overtaken: in the line of its own process. Round trips are counted at the clients. rtt: what the network adds to one. " +
		"redis_rate and throttled sleep for the RetryAfter that they were told, and ask again.",
	Goals: goals(),
	Measure: func(ctx context.Context, o run.Options) (report.Report, error) {
		results, err := run.InTurns(ctx, o, child.Take, groups(o)...)
		r := report.Report{Lines: run.Lines(results)}
		return r, errors.Join(err, picture(&r, results, o.Machine))
	},
}

const (
	processes = 4
	waiters   = 32 // in each process, unless the network is slow
	ours      = "shaper"
)

// An input describes a measurement: processes that share a rate, with callers that wait again as
// soon as they have left.
type input struct {
	Limiter     string
	Waiters     int     // in each process
	Rate        float64 // of all processes together, per second
	RTT, Jitter time.Duration
	Warm        time.Duration
	Window      time.Duration
}

// A result has the figures of the processes together.
type result struct {
	measure.Spread         // of the merged departures; Overtaken is within each process, as no order among them is promised
	ShareOff       float64 `unit:"share-off-%"`           // the largest difference between the share of a process and an equal one, in percent of that
	RoundTrips     float64 `unit:"round-trips/departure"` // of all processes
	CPU            float64 `unit:"cpu-ns/departure"`      // of all processes
	RedisCPU       float64 `unit:"redis-cpu-ns/departure"`
}

// groups are the measurements. Where the network is slow, ours alone is measured: the others are
// then bounded by their round trips.
func groups(o run.Options) [][]run.Case[input] {
	window, rounds := 5*time.Second, o.Times(3, 1)
	if o.Quick {
		window = time.Second
	}
	var all [][]run.Case[input]
	for _, rate := range []float64{100, 1_000, 10_000} {
		var group []run.Case[input]
		within := window
		if rate == 100 && !o.Quick {
			within = 2 * window // One slot more or less must be less than 2 % of a share.
		}
		for _, limiter := range []string{ours, "redis_rate", "throttled"} {
			group = append(group, caseOf(input{Limiter: limiter, Waiters: waiters, Rate: rate, Warm: time.Second, Window: within}, rounds))
		}
		all = append(all, group)
	}
	for _, slow := range []input{{RTT: 2 * time.Millisecond}, {RTT: 20 * time.Millisecond, Jitter: 10 * time.Millisecond}} {
		var group []run.Case[input]
		for _, rate := range []float64{100, 1_000, 10_000} {
			slow.Limiter, slow.Rate, slow.Warm, slow.Window = ours, rate, time.Second, window
			// As many as leave within a few round trips, or the callers would be what bounds the rate.
			slow.Waiters = max(waiters, int(4*rate*(slow.RTT+slow.Jitter).Seconds()/processes))
			group = append(group, caseOf(slow, 1))
		}
		if !o.Quick {
			all = append(all, group)
		}
	}
	return all
}

func caseOf(in input, rounds int) run.Case[input] {
	return run.Case[input]{
		Name:  fmt.Sprintf("Shared/limiter=%s/rate=%.0f/rtt=%s", in.Limiter, in.Rate, in.rtt()),
		Input: in, Rounds: rounds,
	}
}

// rtt returns the time that the network adds to a round trip, in a form that stands in a name.
func (in input) rtt() string {
	switch {
	case in.RTT == 0:
		return "loopback"
	case in.Jitter == 0:
		return in.RTT.String()
	}
	return fmt.Sprintf("%v+-%v", in.RTT, in.Jitter)
}

// goals judge what ours is to reach on loopback, and that it reaches the rate where the network
// is slow.
func goals() (all []report.Goal) {
	for _, rate := range []float64{100, 1_000, 10_000} {
		of := fmt.Sprintf("Shared/limiter=shaper/rate=%.0f/rtt=", rate)
		at := " at " + report.PerSecond(rate)
		for _, rtt := range []string{"loopback", "2ms", "20ms+-10ms"} {
			all = append(all, report.Goal{What: "share of the shared rate that is reached" + at + ", network: " + rtt, Ours: of + rtt + " of-rate", Least: 0.99})
		}
		all = append(all, report.Goal{What: "shares of the processes" + at + ", in % off", Ours: of + "loopback share-off-%", Most: 2})
		if rate == 1_000 {
			all = append(all, report.Goal{What: "round trips per departure" + at, Ours: of + "loopback round-trips/departure", Most: 0.15})
		}
	}
	return all
}

// picture draws how the spacings at 1,000/s spread, if they were measured.
func picture(r *report.Report, results []run.Result[input, result], machine string) error {
	const rate = 1_000
	p := plot.Spacings{
		Name: "shared", Title: "Four processes, one rate: how even is what reaches the upstream?", Rate: rate,
		Caption: fmt.Sprintf("%d processes with %d callers each share a bucket on one Redis server. %s.", processes, waiters, machine),
	}
	for _, one := range results {
		if one.Input.Rate != rate || one.Input.RTT != 0 {
			continue
		}
		row := plot.SpacingsRow{Name: one.Input.Limiter}
		for _, round := range one.Found {
			row.Rounds = append(row.Rounds, round.Spread)
		}
		p.Rows = append(p.Rows, row)
	}
	if len(p.Rows) == 0 {
		return nil
	}
	drawn, err := p.Draw(ours)
	r.Pictures = append(r.Pictures, drawn)
	return err
}

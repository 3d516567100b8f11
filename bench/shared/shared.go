// Package shared measures processes that share one rate through a Redis server: whether
// they reach it together, how evenly the merged stream of their departures leaves, how the
// slots are divided among them, and how often the server is asked. The rivals are what
// a caller that wants to wait does with a meter on Redis: it asks, sleeps for as long as
// it was told to, and asks again.
package shared

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"time"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/plot"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/run"
)

// Experiment is "shared".
var Experiment = run.Experiment{
	Name:     "shared",
	What:     "four processes and one Redis: is the rate reached, how evenly, in which shares, with how many round trips?",
	Estimate: func(o run.Options) time.Duration { return run.Estimate(groups(o)...) },
	Needs: func(run.Options) error {
		if _, err := exec.LookPath(redisServer); err != nil {
			return fmt.Errorf("%s is missing (Debian: apt-get install redis-server): %w", redisServer, err)
		}
		return nil
	},
	Measure: func(ctx context.Context, o run.Options) (report.Report, error) {
		results, err := run.InTurns(ctx, o, child.Take, groups(o)...)
		return reportOf(results, o), err
	},
}

const (
	processes = 4
	waiters   = 32 // in each process, unless the network is slow
	ours      = "shaper"
)

// An input says what is measured: processes that share a rate, with callers that wait
// again as soon as they have left.
type input struct {
	Limiter     string
	Waiters     int     // in each process
	Rate        float64 // of all processes together, per second
	RTT, Jitter time.Duration
	Warm        time.Duration
	Window      time.Duration
}

// A result is what the processes did together.
type result struct {
	measure.Spread         // of the merged departures; Overtaken is within each process, as no order among them is promised
	ShareOff       float64 `unit:"share-off-%"`           // the largest difference between the share of a process and an equal one, in percent of that
	RoundTrips     float64 `unit:"round-trips/departure"` // of all processes
	CPU            float64 `unit:"cpu-ns/departure"`      // of all processes
	RedisCPU       float64 `unit:"redis-cpu-ns/departure"`
}

// groups are what is measured. Where the network is slow, ours alone: what the
// others do then is bounded by their round trips.
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
		Input: in, Rounds: rounds, Estimate: in.Warm + in.Window + time.Second,
	}
}

// rtt returns what the network adds to a round trip, in a form that stands in a name.
func (in input) rtt() string {
	switch {
	case in.RTT == 0:
		return "loopback"
	case in.Jitter == 0:
		return in.RTT.String()
	}
	return fmt.Sprintf("%v+-%v", in.RTT, in.Jitter)
}

func reportOf(results []run.Result[input, result], o run.Options) report.Report {
	if len(results) == 0 {
		return report.Report{}
	}
	r := report.Report{Tables: []report.Table{table(results)}, Goals: goals(results), Lines: run.Lines(results)}
	if p, drawn := picture(results, o.Machine); drawn {
		r.Pictures = append(r.Pictures, p)
	}
	return r
}

func table(results []run.Result[input, result]) report.Table {
	t := report.Table{
		Title: fmt.Sprintf("Shared: %d processes, one bucket on one Redis server", processes),
		Note: "Closed loop: each caller waits again as soon as it has left. Figures are of the merged departures, at the instants at which callers ran again. " +
			"Share off: the largest difference between the share of a process and an equal one, in percent of that. " +
			"Overtaken: in the line of its own process. Round trips are counted at the clients. " +
			"redis_rate and throttled sleep for the RetryAfter that they were told, and ask again. " +
			"Medians of as many rounds as the last column says.",
		Columns: []string{"rate", "limiter", "network", "callers per process", "rate reached", "share off %", "error p50 µs", "bunched %", "overtaken %",
			"round trips per departure", "CPU µs per departure", "Redis CPU µs per departure", "rounds"},
	}
	for _, r := range results {
		m := r.Median
		t.Rows = append(t.Rows, []string{
			report.PerSecond(r.Input.Rate), r.Input.Limiter, r.Input.rtt(), strconv.Itoa(r.Input.Waiters), report.Fixed(m.RateReached, 4), report.Fixed(m.ShareOff, 1),
			report.Figure(m.ErrorP50 / 1000), report.Fixed(m.Bunched, 1), report.Fixed(m.Overtaken, 1), report.Fixed(m.RoundTrips, 3),
			report.Figure(m.CPU / 1000), report.Figure(m.RedisCPU / 1000), strconv.Itoa(len(r.Found)),
		})
	}
	return t
}

// goals judges what ours is to reach on loopback, and that it reaches the rate where the network
// is slow.
func goals(results []run.Result[input, result]) (all []report.Goal) {
	for _, rate := range []float64{100, 1_000, 10_000} {
		found, measured := run.MedianWhere(results, func(in input) bool { return in.Limiter == ours && in.Rate == rate && in.RTT == 0 })
		if !measured {
			continue
		}
		at := " at " + report.PerSecond(rate)
		all = append(all, missed("shared rate"+at, found), report.Bounded("shares of the processes"+at, 2, found.ShareOff, "% off"))
		if rate == 1_000 {
			all = append(all, report.Bounded("sharing"+at, 0.15, found.RoundTrips, "round trips per departure"))
		}
	}
	for _, r := range results {
		if r.Input.Limiter == ours && r.Input.RTT > 0 {
			all = append(all, missed(fmt.Sprintf("shared rate at %s, network %s", report.PerSecond(r.Input.Rate), r.Input.rtt()), r.Median))
		}
	}
	return all
}

// missed is the goal that no more than a hundredth of the rate is missing.
func missed(what string, found result) report.Goal {
	return report.Bounded(what, 1, 100*max(0, 1-found.RateReached), "% missing")
}

// picture draws how the spacings at 1,000/s spread.
func picture(results []run.Result[input, result], machine string) (p report.Picture, drawn bool) {
	const rate = 1_000
	rows := plot.Spacings{
		Name: "shared", Title: "Four processes, one rate: how even is what reaches the upstream?",
		Rate:    rate,
		Caption: fmt.Sprintf("%d processes with %d callers each share a bucket on one Redis server. %s.", processes, waiters, machine),
	}
	for _, r := range results {
		if r.Input.Rate == rate && r.Input.RTT == 0 {
			rows.Rows = append(rows.Rows, plot.SpacingsRow{Name: r.Input.Limiter, Spread: r.Median.Spread})
		}
	}
	if len(rows.Rows) == 0 {
		return p, false
	}
	return rows.Draw(ours), true
}

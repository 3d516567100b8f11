package main

import (
	"context"
	"fmt"
	"io"
	"os"
)

// A comparison is all that was found.
type comparison struct {
	Machine  machine      `json:"machine"`
	Nginx    string       `json:"nginx"`
	Rounds   int          `json:"rounds"`
	Spacings []spacingRow `json:"spacing"`
	Ceilings []ceilingRow `json:"ceiling"`
	Goals    []goal       `json:"goals"`
}

// A spacingRow is one proxy at one rate.
type spacingRow struct {
	Proxy    string    `json:"proxy"`
	Rate     int       `json:"rate"`
	Requests int       `json:"requests"`
	Median   spacing   `json:"median"`
	Rounds   []spacing `json:"rounds"`
}

// A ceilingRow is one proxy without a limit within reach.
type ceilingRow struct {
	Proxy  string    `json:"proxy"`
	Median ceiling   `json:"median"`
	Rounds []ceiling `json:"rounds"`
}

// A goal is a figure that the project has set itself.
type goal struct {
	What    string  `json:"what"`
	Want    float64 `json:"want_at_least"`
	Got     float64 `json:"got"`
	Reached bool    `json:"reached"`
}

const wantedFactor = 4

// compare measures everything, in rounds: what disturbs the machine for a while
// then disturbs one round of all, and not all rounds of one.
func compare(ctx context.Context, p plan, program string, progress io.Writer) (comparison, error) {
	version, err := nginxVersion(ctx, program)
	if err != nil {
		return comparison{}, err
	}
	dir, err := os.MkdirTemp("", "bench-nginx")
	if err != nil {
		return comparison{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // What may be left there is empty folders.
	if err := os.Chmod(dir, 0o711); err != nil {
		return comparison{}, err
	}
	u, err := startUpstream()
	if err != nil {
		return comparison{}, err
	}
	defer u.close()

	all := contenders(program, dir)
	found := comparison{Machine: thisMachine(), Nginx: version, Rounds: p.rounds}
	for _, rate := range p.rates {
		for _, c := range all[:2] {
			found.Spacings = append(found.Spacings, spacingRow{Proxy: c.name, Rate: rate, Requests: p.load(rate).requests})
		}
	}
	for _, c := range all {
		found.Ceilings = append(found.Ceilings, ceilingRow{Proxy: c.name})
	}
	for round := range p.rounds {
		say := func(what string) { fmt.Fprintf(progress, "round %d of %d: %s\n", round+1, p.rounds, what) }
		for i := range found.Spacings {
			row := &found.Spacings[i]
			say(fmt.Sprintf("%d requests through %s at %d/s", row.Requests, row.Proxy, row.Rate))
			s, err := measureSpacing(ctx, all[i%2], u, p.load(row.Rate))
			if err != nil {
				return comparison{}, told(ctx, row.Proxy, err)
			}
			row.Rounds = append(row.Rounds, s)
		}
		for i := range found.Ceilings {
			row := &found.Ceilings[i]
			say(fmt.Sprintf("as many as go through %s in %v", row.Proxy, p.window))
			c, err := measureCeiling(ctx, all[i], u, p.window)
			if err != nil {
				return comparison{}, told(ctx, row.Proxy, err)
			}
			row.Rounds = append(row.Rounds, c)
		}
	}
	perSecond, _, err := flood(ctx, u.address, p.window/2)
	if err != nil {
		return comparison{}, told(ctx, direct, err)
	}
	found.Ceilings = append(found.Ceilings, ceilingRow{Proxy: direct, Rounds: []ceiling{{PerSecond: perSecond}}})
	found.conclude()
	return found, nil
}

// told says which proxy an error is of. An interruption is no error of a proxy,
// whatever it looks like there.
func told(ctx context.Context, proxy string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("%s: %w", proxy, err)
}

// conclude reckons the medians, and how the goals fare.
func (c *comparison) conclude() {
	for i := range c.Spacings {
		row := &c.Spacings[i]
		row.Median = medianSpacing(row.Rounds)
	}
	for i := range c.Ceilings {
		row := &c.Ceilings[i]
		row.Median = ceiling{
			PerSecond:  medianOf(row.Rounds, func(c ceiling) float64 { return c.PerSecond }),
			CPUPer100k: medianOf(row.Rounds, func(c ceiling) float64 { return c.CPUPer100k }),
		}
	}
	for i := 0; i+1 < len(c.Spacings); i += 2 {
		nginx, us := c.Spacings[i], c.Spacings[i+1]
		// The median error is no exact 0 on any clock we know; 1 ns stands for it.
		factor := nginx.Median.ErrorP50 / max(us.Median.ErrorP50, 0.001)
		c.Goals = append(c.Goals, goal{
			What: fmt.Sprintf("median spacing error at %d/s, nginx against ours", us.Rate),
			Want: wantedFactor, Got: factor, Reached: factor >= wantedFactor,
		})
	}
}

func medianSpacing(rounds []spacing) spacing {
	median := func(of func(spacing) float64) float64 { return medianOf(rounds, of) }
	m := spacing{
		RateReached:   median(func(s spacing) float64 { return s.RateReached }),
		ErrorP50:      median(func(s spacing) float64 { return s.ErrorP50 }),
		ErrorP99:      median(func(s spacing) float64 { return s.ErrorP99 }),
		Bunched:       median(func(s spacing) float64 { return s.Bunched }),
		OvertakenSent: median(func(s spacing) float64 { return s.OvertakenSent }),
		Refused:       median(func(s spacing) float64 { return s.Refused }),
	}
	for _, s := range rounds {
		if s.OvertakenQueue == nil {
			return m
		}
	}
	queue := median(func(s spacing) float64 { return *s.OvertakenQueue })
	m.OvertakenQueue = &queue
	return m
}

func medianOf[T any](rounds []T, of func(T) float64) float64 {
	values := make([]float64, len(rounds))
	for i, r := range rounds {
		values[i] = of(r)
	}
	return quantile(values, 0.5)
}

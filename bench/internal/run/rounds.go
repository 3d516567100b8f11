package run

import (
	"context"
	"errors"
	"sync"

	"example.com/leakybucket/bench/internal/report"
)

// A Case is one of the cases that are compared. Its name is the name of its benchmark lines,
// such as "Spacing/limiter=shaper/rate=1000".
type Case[In any] struct {
	Name   string
	Input  In
	Rounds int // it is measured in the first so many rounds
}

// A Result is a case with the outcome of each of its rounds.
type Result[In, Out any] struct {
	Case[In]
	Found []Out // by round
}

// Lines returns the benchmark lines of all results.
func Lines[In, Out any](results []Result[In, Out]) (lines []report.Line) {
	for _, r := range results {
		lines = append(lines, report.Lines(r.Name, r.Found)...)
	}
	return lines
}

// InTurns measures the cases of each group in interleaved rounds: what disturbs the machine
// for a while disturbs all of them alike. Another case begins in each round. A case that
// fails is measured once more, as a machine that stands still can make that happen. If it
// fails again it costs only its own results: InTurns returns the others, in the order of the
// cases, with the error.
func InTurns[In, Out any](ctx context.Context, o Options, take func(context.Context, In) (Out, error), groups ...[]Case[In]) ([]Result[In, Out], error) {
	var results []Result[In, Out]
	var failed []error
	for _, cases := range groups {
		found, errs := make([][]Out, len(cases)), make([]error, len(cases))
		for round, more := 0, true; more; round++ {
			more = false
			for i := range cases {
				i = (i + round) % len(cases)
				c := cases[i]
				if round >= c.Rounds {
					continue
				}
				more = more || round+1 < c.Rounds
				o.Logf("%s, round %d of %d", c.Name, round+1, c.Rounds)
				if errs[i] != nil {
					continue
				}
				one, err := takeTwice(ctx, o, take, c)
				if ctx.Err() != nil {
					return nil, errors.Join(err, ctx.Err())
				}
				found[i], errs[i] = append(found[i], one), err
			}
		}
		results = append(results, conclude(cases, found, errs)...)
		failed = append(failed, errs...)
	}
	return results, errors.Join(failed...)
}

// takeTwice measures a case once more if it fails.
func takeTwice[In, Out any](ctx context.Context, o Options, take func(context.Context, In) (Out, error), c Case[In]) (Out, error) {
	one, err := take(ctx, c.Input)
	if err != nil && ctx.Err() == nil {
		o.Logf("%s is measured once more: %v", c.Name, err)
		one, err = take(ctx, c.Input)
	}
	return one, err
}

// AtOnce measures all cases at the same time, once: it is for those that wait for the clock,
// and leave the processors to one another. Those that fail are measured once more, as
// [InTurns] does.
func AtOnce[In, Out any](ctx context.Context, o Options, take func(context.Context, In) (Out, error), cases []Case[In]) ([]Result[In, Out], error) {
	o.Logf("%d cases at once", len(cases))
	found, errs := make([][]Out, len(cases)), make([]error, len(cases))
	var all sync.WaitGroup
	for i, c := range cases {
		all.Go(func() {
			one, err := takeTwice(ctx, o, take, c)
			found[i], errs[i] = []Out{one}, err
		})
	}
	all.Wait()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return conclude(cases, found, errs), errors.Join(errs...)
}

// conclude makes results of the cases that did not fail.
func conclude[In, Out any](cases []Case[In], found [][]Out, errs []error) []Result[In, Out] {
	var results []Result[In, Out]
	for i, c := range cases {
		if errs[i] == nil && len(found[i]) > 0 {
			results = append(results, Result[In, Out]{c, found[i]})
		}
	}
	return results
}

// Beyond is for figures that stand beside the figures of a bare case, such as a goroutine
// without a limiter. isBare tells which case is the bare one of another. For each result
// Beyond calls subtract with each round of both.
func Beyond[In, Out any](results []Result[In, Out], isBare func(bare, of In) bool, subtract func(bare Out, from *Out)) []Result[In, Out] {
	for _, r := range results {
		for _, bare := range results {
			if !isBare(bare.Input, r.Input) {
				continue
			}
			for round := range min(len(r.Found), len(bare.Found)) {
				subtract(bare.Found[round], &r.Found[round])
			}
		}
	}
	return results
}

package sharedfaults_test

import (
	"bytes"
	"cmp"
	"fmt"
	"math/big"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/model"
)

// An outcome is how a request ended.
type outcome byte

const (
	departed    outcome = 'D'
	unavailable outcome = 'U' // refused with ErrUnavailable
	refused     outcome = 'R' // refused for another reason
)

// An entry is the end of one request.
type entry struct {
	worker  int
	outcome outcome
	at      time.Time     // when it left or was refused
	waited  time.Duration // since it came
}

// came returns when the request came.
func (e entry) came() time.Time { return e.at.Add(-e.waited) }

// A log has the entries that workers have written down, in the order of time.
type log []entry

// clocks is how far two processes may read the clock of the machine differently, and how
// much is lost as servers read it in microseconds.
const clocks = 20 * time.Microsecond

// readLog returns the entries of one worker so far. Only part of the last line may be
// there, as the system writes a line that lies on two pages in two steps, and as workers are
// killed; that line is left out.
func readLog(worker int, file string) (l log, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(text[:bytes.LastIndexByte(text, '\n')+1]) {
		var at, waited int64
		e := entry{worker: worker}
		if _, err := fmt.Sscanf(string(line), "%c %d %d\n", &e.outcome, &at, &waited); err != nil {
			return nil, fmt.Errorf("the line %q: %w", line, err)
		}
		e.at, e.waited = time.Unix(0, at), time.Duration(waited)
		l = append(l, e)
	}
	return l, nil
}

// only returns the entries with an outcome.
func (l log) only(o outcome) log { return l.where(func(e entry) bool { return e.outcome == o }) }

// of returns the entries of one worker.
func (l log) of(worker int) log { return l.where(func(e entry) bool { return e.worker == worker }) }

// between returns the entries from one instant until before another.
func (l log) between(from, to time.Time) log {
	return l.where(func(e entry) bool { return !e.at.Before(from) && e.at.Before(to) })
}

func (l log) where(is func(entry) bool) (some log) {
	for _, e := range l {
		if is(e) {
			some = append(some, e)
		}
	}
	return some
}

// departures returns the departures as the model judges them: each with its number in the
// order in which the requests of its worker came. Of two that came at one instant, the one
// that left first counts as the first.
func (l log) departures() []model.Departure {
	left := l.only(departed)
	byEntry := slices.Clone(left)
	slices.SortStableFunc(byEntry, func(a, b entry) int { return a.came().Compare(b.came()) })
	all := make([]model.Departure, len(left))
	for i, e := range byEntry {
		all[i] = model.Departure{At: e.at.Sub(left[0].at), Process: e.worker, Number: int64(i), Cost: 1}
	}
	slices.SortStableFunc(all, func(a, b model.Departure) int { return cmp.Compare(a.At, b.At) })
	return all
}

// pace returns the pace that the workers of a plan promise together.
func (p plan) pace() model.SharedPace {
	interval := new(big.Rat).Quo(big.NewRat(int64(time.Second), 1), new(big.Rat).SetFloat64(p.Rate))
	return model.SharedPace{Interval: interval, Burst: int64(max(p.Burst, 1)), Lateness: p.Slack + clocks}
}

// keepsPace requires G1 of all departures, and the order within each worker.
func (l log) keepsPace(t *testing.T, p plan) {
	t.Helper()
	require.NotEmpty(t, l.only(departed))
	require.NoError(t, p.pace().Check(l.departures()))
}

// keepsPaceBut requires the same if up to extra departures are left out.
func (l log) keepsPaceBut(t *testing.T, p plan, extra int64) {
	t.Helper()
	require.NotEmpty(t, l.only(departed))
	require.NoError(t, model.CheckOrder(l.departures()))
	require.LessOrEqual(t, p.pace().Surplus(l.departures()), extra, "departures that do not keep the pace")
}

package sharedfaults_test

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"math"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/model"
	"example.com/leakybucket/shaper"
)

// An outcome is how a request ended.
type outcome byte

const (
	departed    outcome = 'D'
	abandoned   outcome = 'A'
	unavailable outcome = 'U' // refused with ErrUnavailable
	refused     outcome = 'R' // refused for another reason
)

// An entry is the end of one request.
type entry struct {
	worker  int
	outcome outcome
	at      time.Time     // when it left, was refused or gave up
	waited  time.Duration // since it came
}

// came returns when the request came.
func (e entry) came() time.Time { return e.at.Add(-e.waited) }

// A log is what the workers have written down, in the order of time.
type log []entry

// clocks is how far two processes may read the clock of the machine differently, and how
// much is lost as servers read it in microseconds.
const clocks = 20 * time.Microsecond

// writtenDown returns what a worker has written down so far. Only part of the last line may be
// there, as the system writes a line that lies on two pages in two steps; that line is left for
// the next reading. In a log that is whole no line is unfinished.
func (m *member) writtenDown(worker int) (log, error) {
	file, err := os.Open(m.plan.Log)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.NewSectionReader(file, m.read, math.MaxInt64-m.read))
	if err != nil {
		return nil, err
	}
	finished := text[:bytes.LastIndexByte(text, '\n')+1]
	if unfinished := text[len(finished):]; m.whole && len(unfinished) > 0 {
		return nil, fmt.Errorf("the last line is not finished: %q", unfinished)
	}
	for line := range bytes.Lines(finished) {
		var at, waited int64
		e := entry{worker: worker}
		if _, err := fmt.Sscanf(string(line), "%c %d %d\n", &e.outcome, &at, &waited); err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		e.at, e.waited = time.Unix(0, at), time.Duration(waited)
		m.log = append(m.log, e)
	}
	m.read += int64(len(finished))
	return m.log, nil
}

func TestALineThatIsBeingWrittenIsReadLater(t *testing.T) {
	t.Parallel()
	m := &member{plan: plan{Log: filepath.Join(t.TempDir(), "log")}}
	for _, step := range []struct {
		text    string
		entries int
	}{{"", 0}, {"U", 0}, {" 3 4\nD 5 6\nD", 2}, {" 7 ", 2}, {"8\n", 3}} {
		file, err := os.OpenFile(m.plan.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
		require.NoError(t, err)
		_, err = file.WriteString(step.text)
		require.NoError(t, err)
		require.NoError(t, file.Close())
		l, err := m.writtenDown(1)
		require.NoError(t, err)
		require.Len(t, l, step.entries, "after %q", step.text)
	}
	require.Equal(t, log{{1, 'U', time.Unix(0, 3), 4}, {1, 'D', time.Unix(0, 5), 6}, {1, 'D', time.Unix(0, 7), 8}}, m.log)

	m.whole = true
	_, err := m.writtenDown(1)
	require.NoError(t, err)
	for _, text := range []string{"D 9", "D 9\n"} { // It was cut off, or is no entry.
		require.NoError(t, os.WriteFile(m.plan.Log, []byte(text), 0o666))
		m.read = 0
		_, err = m.writtenDown(1)
		require.Error(t, err, text)
	}
}

// merge returns the entries of several logs in the order of time.
func merge(logs ...log) log {
	all := slices.Concat(logs...)
	slices.SortStableFunc(all, func(a, b entry) int { return a.at.Compare(b.at) })
	return all
}

// only returns the entries with an outcome.
func (l log) only(o outcome) log { return l.where(func(e entry) bool { return e.outcome == o }) }

// of returns the entries of one worker.
func (l log) of(worker int) log { return l.where(func(e entry) bool { return e.worker == worker }) }

// but returns the entries of all other workers.
func (l log) but(worker int) log { return l.where(func(e entry) bool { return e.worker != worker }) }

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
		all[i] = model.Departure{At: e.at.Sub(left[0].at), Process: e.worker, Number: i, Cost: 1}
	}
	slices.SortStableFunc(all, func(a, b model.Departure) int { return cmp.Compare(a.At, b.At) })
	return all
}

// pace returns what the workers of a plan promise together.
func (p plan) pace() model.SharedPace {
	interval := new(big.Rat).Quo(big.NewRat(int64(time.Second), 1), new(big.Rat).SetFloat64(p.Rate))
	return model.SharedPace{Interval: interval, Burst: int64(max(p.Burst, 1)), Lateness: p.lateness() + clocks}
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

// gap returns the longest time in which nobody left, from one instant until another.
func (l log) gap(from, to time.Time) (longest time.Duration) {
	last := from
	for _, e := range l.only(departed).between(from, to) {
		last, longest = e.at, max(longest, e.at.Sub(last))
	}
	return max(longest, to.Sub(last))
}

// rate returns the departures per second from one instant until another.
func (l log) rate(from, to time.Time) float64 {
	return float64(len(l.only(departed).between(from, to))) / to.Sub(from).Seconds()
}

// shares returns the part of the departures that each worker has had.
func (l log) shares(workers int) []float64 {
	parts := make([]float64, workers)
	all := l.only(departed)
	for _, e := range all {
		parts[e.worker] += 1 / float64(len(all))
	}
	return parts
}

// summary says in one line how the fleet did.
func (l log) summary(p plan, began, ended time.Time, reports []report) string {
	var trips, leased, dropped, back, failures uint64
	errors := map[string]int{}
	for _, r := range reports {
		b := r.Stats.Bucket
		trips, leased, dropped = trips+b.RoundTrips, leased+b.Leased, dropped+b.Dropped
		back, failures = back+b.GivenBack, failures+b.Failures
		for text, n := range r.Errors {
			errors[text] += n
		}
	}
	count := map[outcome]int{}
	var shares []string
	for _, e := range l {
		count[e.outcome]++
	}
	workers := 0
	for _, e := range l {
		workers = max(workers, e.worker+1)
	}
	for _, share := range l.shares(workers) {
		shares = append(shares, fmt.Sprintf("%.1f", share*100))
	}
	return fmt.Sprintf("%.1f %% of the rate, shares %s, gap %v, %d too many (D=%v); %d departed, %d abandoned, %d unavailable, %d refused; "+
		"%.3f round trips for each, %d leased, %d dropped, %d given back, %d failures %v",
		100*l.rate(began, ended)/p.Rate, strings.Join(shares, "/"), l.gap(began, ended), p.pace().Surplus(l.departures()), p.lateness(),
		count[departed], count[abandoned], count[unavailable], count[refused],
		float64(trips)/float64(max(1, count[departed])), leased, dropped, back, failures, errors)
}

// lateness returns D, for how long a slot may be used. Plans whose engine is far have a
// Slack.
func (p plan) lateness() time.Duration {
	return cmp.Or(p.Slack, max(p.unit(), shaper.DefaultSlack))
}

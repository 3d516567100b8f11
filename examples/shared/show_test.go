package main

import (
	"bytes"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/model"
	"example.com/leakybucket/internal/servers"
)

func TestProcessesShareOneRateAndOthersGoOnWhenOneIsKilled(t *testing.T) {
	t.Parallel()
	address := servers.StartRedis(t).Addr
	// On a busy machine a process may not run in so short a time.
	for length := 2 * time.Second; ; length *= 2 {
		c := config{rate: 50, processes: 3, callers: 4, length: length, redis: address}
		before, after := showOnce(t, c)
		// Others use this machine too, so many slots may pass unused.
		left := before[0] + before[1] + before[2] + after[0] + after[1]
		enough := left > int(c.rate*length.Seconds())/2 && before[0] > 0 && before[1] > 0 && before[2] > 0 && after[0] > 0 && after[1] > 0
		if enough {
			break
		}
		require.Less(t, length, 16*time.Second, "before the kill %v of the processes left, and after it %v", before, after)
	}
}

// showOnce returns how many requests of each process left before the last one was killed, and
// after that. It checks what holds on any machine.
func showOnce(t *testing.T, c config) (before, after [3]int) {
	var out bytes.Buffer
	r, err := show(t.Context(), c, &out)
	require.NoError(t, err)

	// The processes read the clock that their logs have in common each for itself, at about
	// the same instant as their own: a thousandth of a second is enough for that.
	pace := model.SharedPace{Interval: big.NewRat(int64(20*ms), 1), Burst: 1, Lateness: r.lateness + ms}
	var log []model.Departure
	for i, d := range r.log {
		log = append(log, model.Departure{At: d.at, Process: d.process, Number: i, Cost: 1})
		if d.at <= r.killed {
			before[d.process]++
		} else {
			after[d.process]++
		}
	}
	require.NoError(t, pace.Check(log))
	require.GreaterOrEqual(t, r.killed, c.length/2)
	require.Zero(t, after[2], "after it was killed")
	require.Positive(t, r.roundTrips)
	require.Contains(t, out.String(), r.summary())
	return before, after
}

// A process that ends by itself is an error with what it has printed.
func TestProcessThatFailsIsNamed(t *testing.T) {
	f, err := startFleet(1, task{Redis: "127.0.0.1:1", Key: "", Rate: 1, Callers: 1})
	defer f.stop()
	require.NoError(t, err)
	r := <-f.reports
	require.EqualError(t, r.ended, "process a has ended: exit status 1 shaper: New: the key of WithBucket is empty")
}

// newLog returns a picture with a kill and a departure in each slot of 1.5 s.
func newLog(w *bytes.Buffer, live bool) *picture {
	p := newPicture(config{rate: 8, processes: 2, length: 1500 * ms}, w)
	p.live = live
	p.log, p.killed = even(p.comb, 125*ms, 12, 2), 750*ms
	return p
}

func TestLinesAreDrawnWhenTheyAreComplete(t *testing.T) {
	const (
		first  = "      0 s a       b       a       b       a       b       a       b\n"
		killed = "                                      process b is killed ^\n"
		second = "      1 s a       b       a       b\n"
	)
	var out bytes.Buffer
	p := newLog(&out, false)
	for _, row := range []struct {
		now  time.Duration
		want string
	}{
		{time.Second + grace - 1, ""},
		{time.Second + grace, first + killed},
		{1500*ms + grace - 1, first + killed}, // the second line is half as long
		{1500*ms + grace, first + killed + second},
		{2*time.Second + grace, first + killed + second},
	} {
		p.draw(row.now)
		require.Equal(t, row.want, out.String(), "after %v", row.now)
	}
}

func TestTerminalShowsTheLineThatGrows(t *testing.T) {
	var out bytes.Buffer
	p := newLog(&out, true)
	all := p.log
	p.log = all[:2]
	p.draw(150 * ms)
	require.Equal(t, "\r\x1b[K      0 s a       b", out.String())
	out.Reset()
	p.log = all
	p.draw(time.Second + grace)
	require.Equal(t, "\r\x1b[K      0 s a       b       a       b       a       b       a       b\n"+
		"                                      process b is killed ^\n"+
		"\r\x1b[K      1 s a       b       a       b", out.String())
}

func TestReportsOfAllProcessesAreMerged(t *testing.T) {
	p := newPicture(config{rate: 20, processes: 2, length: time.Second}, &bytes.Buffer{})
	begin := time.Unix(1, 0)
	for _, r := range []report{
		{process: 1, at: begin, roundTrips: 2, lateness: 50 * ms},
		{process: 0, at: begin.Add(50 * ms), roundTrips: 3, lateness: 60 * ms},
		{process: 1, at: begin.Add(100 * ms), roundTrips: 4, lateness: 50 * ms},
		{process: 0, at: begin.Add(time.Second), roundTrips: 9, lateness: 50 * ms}, // too late to count as a departure
	} {
		p.add(r)
	}
	require.Equal(t, []departure{{1, p.lead()}, {0, p.lead() + 50*ms}, {1, p.lead() + 100*ms}}, p.log)
	require.Equal(t, int64(13), p.roundTrips)
	require.Equal(t, 60*ms, p.lateness)
}

func TestAKillThatIsLateMakesThePictureLonger(t *testing.T) {
	p := newPicture(config{rate: 20, processes: 2, length: 2 * time.Second}, &bytes.Buffer{})
	p.isKilled(1020 * ms)
	require.Equal(t, 2*time.Second, p.length)
	p.isKilled(3510 * ms)
	require.Equal(t, 4500*ms, p.length)
	require.Equal(t, 3510*ms, p.killed)
}

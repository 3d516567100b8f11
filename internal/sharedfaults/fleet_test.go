package sharedfaults_test

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
)

// A fleet is several workers that share a bucket.
type fleet struct {
	t       *testing.T
	workers []*member
	began   time.Time
	watch   realtime.Watch // of the test itself, while it waits
}

// A member is a worker as its test sees it.
type member struct {
	t       *testing.T
	plan    plan
	command *exec.Cmd
	orders  io.WriteCloser
	answers *json.Decoder
	stderr  strings.Builder
	dead    bool
	whole   bool  // its log is: all its requests had ended before it was killed
	read    int64 // so many bytes of its log have been
	log     log   // what they say
}

// four returns a plan for each of four workers that do the same.
func four(p plan) []plan { return []plan{p, p, p, p} }

// startFleet starts a worker for each plan, waits until each has made its Shaper, and then
// lets requests come. The workers end with the test.
func startFleet(t *testing.T, plans []plan) *fleet {
	t.Helper()
	f := &fleet{t: t}
	dir := t.TempDir()
	for i, p := range plans {
		p.Log = filepath.Join(dir, fmt.Sprint(i))
		f.workers = append(f.workers, startMember(t, p))
	}
	for _, m := range f.workers {
		m.answer()
	}
	f.began = time.Now()
	f.each(order{Do: begin})
	return f
}

func startMember(t *testing.T, p plan) *member {
	text, err := json.Marshal(p)
	require.NoError(t, err)
	own, err := os.Executable()
	require.NoError(t, err)
	m := &member{t: t, plan: p, command: exec.Command(own)}
	m.command.Env = append(os.Environ(), planVariable+"="+string(text))
	m.command.Stderr = &m.stderr
	m.orders, err = m.command.StdinPipe()
	require.NoError(t, err)
	out, err := m.command.StdoutPipe()
	require.NoError(t, err)
	m.answers = json.NewDecoder(out)
	require.NoError(t, m.command.Start())
	t.Cleanup(m.kill)
	return m
}

// tells gives an order to the worker.
func (m *member) tells(o order) {
	m.t.Helper()
	require.NoError(m.t, json.NewEncoder(m.orders).Encode(o))
}

// answer returns the answer to the order given last.
func (m *member) answer() report {
	m.t.Helper()
	var r report
	if err := m.answers.Decode(&r); err != nil {
		m.kill()
		m.t.Fatalf("a worker gives no answer: %v\n%s", err, &m.stderr)
	}
	require.Empty(m.t, r.Err)
	require.Empty(m.t, r.Other)
	return r
}

// does gives an order to the worker, and returns its answer.
func (m *member) does(o order) report {
	m.t.Helper()
	m.tells(o)
	return m.answer()
}

// pause stops the worker in the middle of whatever it does; resume lets it go on.
func (m *member) pause()  { require.NoError(m.t, m.command.Process.Signal(pause)) }
func (m *member) resume() { require.NoError(m.t, m.command.Process.Signal(resume)) }

// kill ends the worker at once, and returns when it has ended.
func (m *member) kill() {
	if m.dead {
		return
	}
	m.dead = true
	_ = m.command.Process.Kill() // It may have ended.
	_ = m.command.Wait()         // It was killed.
}

// each gives an order to all workers that live, and returns their answers. All carry it out
// at the same time.
func (f *fleet) each(o order) (reports []report) {
	f.t.Helper()
	for _, m := range f.workers {
		if !m.dead {
			m.tells(o)
		}
	}
	for _, m := range f.workers {
		if !m.dead {
			reports = append(reports, m.answer())
		}
	}
	return reports
}

// ends lets no more requests come, waits until those that wait have left, ends the workers,
// and returns the last word of each that lived, and the log of all.
func (f *fleet) ends() ([]report, log) {
	f.t.Helper()
	ended := time.Now()
	f.each(order{Do: quiet})
	reports := f.each(order{Do: shutdown})
	for _, m := range f.workers {
		m.whole = !m.dead // One that was killed before may have been writing.
		m.kill()
	}
	l := f.log()
	f.t.Log(l.summary(f.plan(), f.began, ended, reports))
	return reports, l
}

// runsAtItsRate lets the fleet run for 2 s, or until it leaves at all, or for a longer time in a
// long run, and ends it. It requires that the fleet keeps the pace and reaches its rate, and
// returns the last words of the workers, and the log of that time.
func (f *fleet) runsAtItsRate(longer time.Duration) ([]report, log) {
	f.t.Helper()
	length, least := 2*time.Second, busy
	if unloaded {
		length, least = longer, 0.99
	}
	from := f.began.Add(noise)
	to := f.reaches(length, from, f.plan().Rate*busy)
	reports, l := f.ends()
	l.keepsPace(f.t, f.plan())
	f.accounts(reports)
	require.Greater(f.t, l.rate(from, to), f.plan().Rate*least)
	return reports, l.between(from, to)
}

// plan returns the plan of the first worker, which those of most tests share.
func (f *fleet) plan() plan { return f.workers[0].plan }

// log returns what all workers have written down, in the order of time.
func (f *fleet) log() log {
	f.t.Helper()
	var logs []log
	for i, m := range f.workers {
		l, err := m.writtenDown(i)
		require.NoError(f.t, err)
		logs = append(logs, l)
	}
	return merge(logs...)
}

// accounts requires that every cost unit that a worker has leased has been used, dropped or
// given back, of those workers that lived to the end and have only left by the bucket.
func (f *fleet) accounts(reports []report) {
	f.t.Helper()
	for _, r := range reports {
		b := r.Stats.Bucket
		require.Equal(f.t, b.Leased, r.Stats.Departed+b.Dropped+b.GivenBack+uint64(b.Held), "%+v", b)
		require.Zero(f.t, b.Held)
	}
}

// tripsPerDeparture returns how many round trips all workers made for each departure.
func tripsPerDeparture(reports []report) float64 {
	var trips, left uint64
	for _, r := range reports {
		trips, left = trips+r.Stats.Bucket.RoundTrips, left+r.Stats.Departed
	}
	return float64(trips) / float64(left)
}

// adds starts one more worker, and lets requests come to it.
func (f *fleet) adds(p plan) *member {
	f.t.Helper()
	p.Log = filepath.Join(filepath.Dir(f.plan().Log), fmt.Sprint(len(f.workers)))
	m := startMember(f.t, p)
	f.workers = append(f.workers, m)
	m.answer()
	m.does(order{Do: begin})
	return m
}

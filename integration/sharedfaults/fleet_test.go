package sharedfaults_test

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/shaper/shared"
)

// patience is how long a test waits for an event that must come. A busy machine may stop processes, each
// for itself, for some seconds; so a test says when something happens by instants that it has
// measured, and never that something has happened after so long. Nothing takes longer than a
// fail-over.
const patience = servers.Failover

// A fleet is several workers that share a bucket.
type fleet struct {
	t       *testing.T
	workers []*member
	finally []func(reports []report, l log) // what else to judge when it has ended
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
}

// four returns a plan for each of four workers that do the same.
func four(p plan) []plan { return []plan{p, p, p, p} }

// startFleet starts a worker for each plan, and waits until some requests of each have left.
// The workers end with the test.
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
	time.Sleep(400 * time.Millisecond)
	f.leaves(time.Time{})
	return f
}

// adds starts one more worker.
func (f *fleet) adds(p plan) {
	f.t.Helper()
	p.Log = filepath.Join(filepath.Dir(f.plan().Log), fmt.Sprint(len(f.workers)))
	m := startMember(f.t, p)
	f.workers = append(f.workers, m)
	m.answer()
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
func (m *member) pause()  { require.NoError(m.t, m.command.Process.Signal(syscall.SIGSTOP)) }
func (m *member) resume() { require.NoError(m.t, m.command.Process.Signal(syscall.SIGCONT)) }

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
	f.each(order{Do: quiet})
	reports := f.each(order{Do: shutdown})
	for _, m := range f.workers {
		m.kill()
	}
	l := f.log()
	for _, judge := range f.finally {
		judge(reports, l)
	}
	return reports, l
}

// plan returns the plan of the first worker. In most tests all have the same.
func (f *fleet) plan() plan { return f.workers[0].plan }

// log returns all entries of all workers so far, in the order of time.
func (f *fleet) log() (l log) {
	f.t.Helper()
	for i, m := range f.workers {
		written, err := readLog(i, m.plan.Log)
		require.NoError(f.t, err)
		l = append(l, written...)
	}
	slices.SortStableFunc(l, func(a, b entry) int { return a.at.Compare(b.at) })
	return l
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

// until waits until a condition holds. If it never does, the failure shows the reports of the workers.
func (f *fleet) until(what string, is func() bool) {
	f.t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			require.FailNow(f.t, "never: "+what, "%+v", f.each(order{Do: tell}))
		}
	}
}

// leaves waits until a request has left, from an instant on, of each of the given workers, or of
// each that lives.
func (f *fleet) leaves(from time.Time, of ...int) {
	f.t.Helper()
	f.until("requests of each worker leave", func() bool {
		l := f.log().only(departed).where(func(e entry) bool { return !e.at.Before(from) })
		for i, m := range f.workers {
			asked := !m.dead && (len(of) == 0 || slices.Contains(of, i))
			if asked && len(l.of(i)) == 0 {
				return false
			}
		}
		return true
	})
}

// waitsFor waits until a condition holds for the reports of all workers that live.
func (f *fleet) waitsFor(what string, is func(report) bool) {
	f.t.Helper()
	f.until(what, func() bool {
		return !slices.ContainsFunc(f.each(order{Do: tell}), func(r report) bool { return !is(r) })
	})
}

// waitsForState waits until each worker that lives finds its bucket in a state. In the state
// [shared.StateShared] the latest call of each has succeeded.
func (f *fleet) waitsForState(s shared.State) {
	f.t.Helper()
	f.waitsFor("each finds its bucket "+string(s), func(r report) bool {
		return r.Stats.Bucket.State == s && (s != shared.StateShared || r.Broken == "")
	})
}

package caddyshaper

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/pprof"
	"strings"
	"sync"
	"time"

	"example.com/leakybucket/shaper"
)

// HostOf returns the part host of the key of a request for a host.
func HostOf(host string) string { return hostOf(&http.Request{Host: host}) }

// SetLinger sets for how long lines that nobody has are kept. It is called before any line is
// made: goroutines that outlive their test read it.
func SetLinger(d time.Duration) { lingerFor = d }

// Names returns the names of the lines that are running, and of all lines that are known.
func Names() (inUse, all []string) {
	for _, l := range running() {
		inUse = append(inUse, l.name)
	}
	for _, l := range known.list() {
		all = append(all, l.name)
	}
	return inUse, all
}

// Waiting returns how many requests wait in the lines of a name.
func Waiting(name string) (n int) {
	for _, l := range known.list() {
		if l.name == name {
			n += l.waiting()
		}
	}
	return n
}

// CloseLines does for the lines of a name what the end of the process does.
func CloseLines(name string) { known.latest(name, nil).close() }

// Limits returns the limits that a key has now.
func Limits(name, key string) string {
	l := known.latest(name, nil)
	if l == nil {
		return "no lines"
	}
	limits, err := l.limitsOf(key)
	if err != nil {
		return err.Error()
	}
	return limits.String()
}

// InForce returns the limits that are in force for a key of a source of pages.
func InForce(source, key string) string {
	for _, l := range shownLines() {
		if l.name != source {
			continue
		}
		if l.line != nil {
			return l.line.Limits().String()
		}
		limits, err := l.group.LimitsOf(key)
		if err != nil {
			return err.Error()
		}
		return limits.String()
	}
	return "no such source"
}

// ReloadBeforeAChangeOfRules puts other limits in force for the line of fair queueing of a name, while a change of the rules of the
// configuration before is on its way. It returns the limits in force in the end.
func ReloadBeforeAChangeOfRules(name string, limits shaper.Limits, until func(cond func() bool)) shaper.Limits {
	l := known.latest(name, nil)
	before := l.says.Load()
	l.mu.Lock()
	var change sync.WaitGroup
	change.Go(func() { l.rulesChanged(before) })
	until(func() bool { // It waits for the lock, whatever it does before.
		var stacks strings.Builder
		_ = pprof.Lookup("goroutine").WriteTo(&stacks, 2)
		for stack := range strings.SplitSeq(stacks.String(), "\n\n") {
			if strings.Contains(stack, "[sync.Mutex.Lock") && strings.Contains(stack, ".rulesChanged(") {
				return true
			}
		}
		return false
	})
	next := *before
	next.settings.limits = limits
	l.applyLocked(&next)
	l.mu.Unlock()
	change.Wait()
	return l.fair.Load().Limits()
}

// Groups returns how many groups the lines of a name have.
func Groups(name string) (n int) {
	l := known.latest(name, nil)
	for _, g := range []*shaper.Group[string]{l.live, l.trial.Load()} {
		if g != nil {
			n++
		}
	}
	return n
}

// RuleChanges returns how many changes of the rules of a name have taken effect, and how many have not.
func RuleChanges(name string) (reloads, failures uint64) {
	st := known.latest(name, nil).file().Status()
	return st.Reloads, st.Failures
}

// Ready reports what ready does.
func Ready() bool { return ready() }

// Fill lets one request leave of each of so many keys of a name.
func Fill(name string, keys int) {
	l := known.latest(name, nil)
	for i := range keys {
		l.live.Allow(fmt.Sprintf("2001:db8:%x:%x::", i>>16, i&0xffff))
	}
}

// Keys returns how many keys of a name have a line.
func Keys(name string) int { return known.latest(name, nil).live.Stats().Keys }

// NewFailureLog returns the functions of a failureLog.
func NewFailureLog(log *slog.Logger) (note func(status int, err error), end func()) {
	l := newFailureLog(log)
	return l.note, l.close
}

// NewRedisLog returns what takes the lines of the client of Redis.
func NewRedisLog(log *slog.Logger) func(ctx context.Context, format string, args ...any) {
	return newRedisLog(log).Printf
}

// FairStats returns the state of the line of fair queueing of a name.
func FairStats(name string) shaper.Stats { return known.latest(name, nil).fair.Load().Stats() }

// FairLine returns the line of fair queueing of a name.
func FairLine(name string) *shaper.Shaper { return known.latest(name, nil).fair.Load() }

// WriteUsage writes lines of a usage log, and returns how many were written without an error.
func WriteUsage(to io.WriteCloser, lines ...string) (written int) {
	u := &usageLog{to: to}
	for _, line := range lines {
		if u.write([]byte(line+"\n")) == nil {
			written++
		}
	}
	return written
}

// MostUnwritten is how many bytes of lines wait for a disk.
const MostUnwritten = mostUnwritten

// NewUsage returns what takes the lines of a usage log, and what ends that.
func NewUsage(to io.WriteCloser) (add func(line string) error, end func() error) {
	u := newUsageLog(to)
	u.failures.tell = func(int, error) {}
	go u.writeAll()
	return func(line string) error { return u.add([]byte(line + "\n")) }, u.Destruct
}

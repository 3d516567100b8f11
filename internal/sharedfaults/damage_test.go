package sharedfaults_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
)

// Whatever somebody has written to the key, requests go on leaving, at no more than the rate,
// but for what was held when the state was lost.
func TestADamagedStateOfRedisStopsNobody(t *testing.T) {
	t.Parallel()
	r := startRedis(t)
	year := time.Now().AddDate(1, 0, 0).UnixMicro()
	for _, row := range []struct {
		name    string
		command []string
		often   bool // in the short form too
	}{
		{"garbage", []string{"SET", "KEY", "garbage"}, true},
		{"nothing", []string{"SET", "KEY", ""}, false},
		{"too few numbers", []string{"SET", "KEY", "17 4"}, false},
		{"negative", []string{"SET", "KEY", "-STATE"}, false},
		{"cut off", []string{"SETRANGE", "KEY", "9", "\x00"}, true},
		{"too large", []string{"SET", "KEY", "99999999999999999999999999STATE"}, true},
		{"of the next year", []string{"SET", "KEY", "STATE+YEAR"}, true},
		{"a list", []string{"RPUSH", "OTHER", "1"}, true},
		{"a hash", []string{"HSET", "OTHER", "empty", "1"}, false},
	} {
		if !row.often && !long {
			continue
		}
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			p := plan{Engine: redisEngine, Addrs: []string{r.Addr}, Key: t.Name(), Rate: 500, Waiters: 8, Slack: d}
			do := func(args ...string) any {
				t.Helper()
				answer, err := r.Do(args...)
				require.NoError(t, err)
				return answer
			}
			f := startFleet(t, four(p))
			f.warmsUp(400 * time.Millisecond)
			key := "shaper:" + p.Key
			state := do("GET", key).(string)
			fields := strings.Fields(state)
			fields[0], fields[2] = itoa(year), itoa(year) // The clock was a year ahead when it was written.
			damage := strings.NewReplacer("KEY", key, "OTHER", t.Name(), "STATE+YEAR", strings.Join(fields, " "), "STATE", state)
			command := slices.Clone(row.command)
			for i := range command {
				command[i] = damage.Replace(command[i])
			}
			do(command...)
			if row.command[1] == "OTHER" { // All at once, as somebody may write the key between.
				do("RENAME", t.Name(), key)
			}
			at := time.Now()
			to := f.reaches(700*time.Millisecond, at.Add(noise/2), p.Rate*busy)
			reports, l := f.ends()
			l.keepsPaceBut(t, p, 3*p.held())
			f.accounts(reports)
			require.Greater(t, l.rate(at.Add(noise/2), to), p.Rate*busy)
		})
	}
}

// The same where the state is numbers, as in a row of a table.
func TestNumbersThatMakeNoSenseStopNobody(t *testing.T) {
	now := func() int64 { return time.Now().UnixMicro() }
	for name, damage := range map[string]func(l shaper.BucketLevel) shaper.BucketLevel{
		"before 1970": func(l shaper.BucketLevel) shaper.BucketLevel { l.Empty.Micros = -l.Empty.Micros; return l },
		"written next year": func(l shaper.BucketLevel) shaper.BucketLevel {
			const year = 365 * 24 * 3600e6
			l.Empty.Micros += year
			l.At += year
			return l
		},
		"written in 1970": func(l shaper.BucketLevel) shaper.BucketLevel { l.Empty.Micros, l.At = 1, 1; return l },
		"never written":   func(shaper.BucketLevel) shaper.BucketLevel { return shaper.BucketLevel{} },
		"empty long ago":  func(l shaper.BucketLevel) shaper.BucketLevel { l.Empty.Micros = now() - 30e6; return l },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := buckettest.NewMemory()
				m.SetDelay(time.Millisecond, time.Millisecond)
				p := plan{Rate: 500, Waiters: 8, Slack: d}
				l := bubbleFleet(t, m, p, func() {
					time.Sleep(400 * time.Millisecond)
					m.Set("key", damage(m.Level("key")))
					time.Sleep(700 * time.Millisecond)
				})
				l.keepsPaceBut(t, p, 3*p.held())
				require.Less(t, l.gap(l[0].at, l[len(l)-1].at), p.time(4*p.held())+d)
			})
		})
	}
}

// bubbleFleet is a fleet in a bubble: four Shapers that share a Memory. It ends after a
// function has returned, and returns the log.
func bubbleFleet(t *testing.T, m *buckettest.Memory, p plan, during func()) (l log) {
	t.Helper()
	var mu sync.Mutex
	ctx, stop := context.WithCancel(t.Context())
	for i := range 4 {
		trace := &shaper.Trace{Departed: func(_ context.Context, e shaper.Event) {
			mu.Lock()
			defer mu.Unlock()
			l = append(l, entry{i, departed, e.At, e.Waited})
		}}
		s := newShared(t, m, p.limits(), shaper.WithTrace(trace), shaper.WithColdGuard(p.Guard))
		for range p.Waiters {
			go func() {
				for s.Wait(ctx) == nil {
				}
			}()
		}
	}
	during()
	stop()
	synctest.Wait()
	return merge(l)
}

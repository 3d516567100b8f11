package shaper_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/watch"
)

// This file tests Snapshot and Restore of a Group.

// next makes g a new Group that continues from a snapshot, as after a restart.
func (g *groupStage) next(snapshot string, opts ...shaper.GroupOption) error {
	var err error
	g.Group, err = shaper.NewGroup(g.limitsOf, opts...)
	require.NoError(g.t, err)
	shaper.SpreadHomes(g.Group, strings.Split("abcdefghijklmnopqrstuvwxyz", "")...)
	return g.Restore([]byte(snapshot))
}

func TestAllKeysAreAsFullAfterARestart(t *testing.T) {
	playKeys(t, "1/s burst 5 depth 1", func(g *groupStage) {
		g.limit("b", "1 per 10s burst 2")
		for _, key := range []string{"a", "b", "c", "d"} {
			require.True(t, g.AllowN(key, 2))
		}
		require.True(t, g.AllowN("a", 3))
		g.arriveAll("a1")
		g.Limiter("e").Hold(10 * time.Second)
		require.False(t, g.Allow("b"))
		g.at(1500 * ms)
		require.True(t, g.AllowN("c", 4))
		g.shutDown()
		snapshot := snapshotOf(t, g.Group)
		g.at(2 * time.Second)
		require.NoError(t, g.next(snapshot, shaper.WithBlock(time.Minute)))
		require.Equal(t, map[string]float64{"a": 4, "b": 1.8, "c": 4, "e": 0}, g.levels(), "d has drained at 2 s")
		st, _ := g.StatsOf("b")
		require.Equal(t, g.start.Add(time.Minute), st.BlockedUntil)
		require.Equal(t, 4, g.Group.Stats().Keys)
		g.arriveAll("a2", "a3", "b1", "c1", "d1", "e1")
		g.at(time.Minute)
		g.saw("1s a1 left", "1.5s shut down: <nil>", "2s a2 left", "3s a3 left", "2s b1 full, retry 58s", "2s c1 left", "2s d1 left", "10s e1 left")
		g.gone()
	}, shaper.WithBlock(time.Minute))
}

func TestASnapshotOfAGroupIsReadable(t *testing.T) {
	playKeys(t, "3/s burst 5", func(g *groupStage) {
		require.Equal(t, `{"version":1,"of":"group","taken":"2000-01-01T00:00:00Z","buckets":[],"top":{"calls":0,"least":0,"keys":[]}}`, snapshotOf(t, g.Group))
		require.True(t, g.AllowN("a", 4))
		require.False(t, g.AllowN("a", 2))
		g.at(100 * ms)
		require.Equal(t, `{"version":1,"of":"group","taken":"2000-01-01T00:00:00.1Z","buckets":[{"key":"a","level":"37/10","rate":3}],`+
			`"top":{"calls":1,"least":0,"keys":[{"key":"a","count":1}]}}`, snapshotOf(t, g.Group))
	})
}

// The limits function is asked for each key, as for a new one; keys whose limits can't be had
// are told.
func TestRestoreAsksForTheLimitsOfEachKey(t *testing.T) {
	playKeys(t, "1/s burst 9", func(g *groupStage) {
		for _, key := range []string{"a", "b", "c", "d"} {
			require.True(t, g.AllowN(key, 9))
		}
		snapshot := snapshotOf(t, g.Group)
		gone := errors.New("no such customer")
		g.says("b", func() (shaper.Limits, error) { return shaper.Limits{}, gone })
		g.limit("c", "inf")
		g.limit("d", "1/min burst 2")
		g.wasAsked()
		err := g.next(snapshot)
		require.ErrorIs(t, err, gone)
		require.ErrorContains(t, err, "shaper: Restore: 1 of 4 keys could not be restored\n")
		require.ErrorContains(t, err, `key "b": shaper: limits of a key: no such customer`)
		require.ElementsMatch(t, []string{"a", "b", "c", "d"}, g.wasAsked())
		require.EqualValues(t, 1, g.Group.Stats().LimitErrors)
		require.Equal(t, map[string]float64{"a": 9, "d": 9}, g.levels(), "c is at rate.Inf")
	})
}

// What does not fit the table shares, and brings its level along.
func TestRestoreRespectsMaxKeys(t *testing.T) {
	playKeys(t, "1/s burst 3", func(g *groupStage) {
		for _, key := range []string{"a", "b", "c"} {
			require.True(t, g.AllowN(key, 3))
		}
		snapshot := snapshotOf(t, g.Group)
		require.NoError(t, g.next(snapshot, shaper.WithMaxKeys(1)))
		require.Equal(t, 1, g.Group.Stats().Keys)
		for _, key := range []string{"a", "b", "c"} {
			require.False(t, g.Allow(key), key)
		}
		require.EqualValues(t, 2, g.Group.Stats().Overflowed)
		g.at(time.Second)
		for _, key := range []string{"a", "b", "c"} {
			require.True(t, g.Allow(key), key)
			require.False(t, g.Allow(key), key)
		}
	})
}

// A key that has drained since takes no room from those that have not.
func TestADrainedKeyTakesNoRoomInRestore(t *testing.T) {
	playKeys(t, "1/s burst 99", func(g *groupStage) {
		for i := range 50 {
			require.True(t, g.AllowN(fmt.Sprint("short ", i), 1))
			require.True(t, g.AllowN(fmt.Sprint("long ", i), 99))
		}
		snapshot := snapshotOf(t, g.Group)
		g.at(time.Second)
		require.NoError(t, g.next(snapshot, shaper.WithMaxKeys(50)))
		require.Len(t, g.levels(), 50)
		for key, level := range g.levels() {
			require.Contains(t, key, "long")
			require.Equal(t, 98.0, level)
		}
		require.NoError(t, g.Close())
		snapshot = snapshotOf(t, g.Group)
		g.at(time.Hour)
		require.NoError(t, g.next(snapshot))
		require.Zero(t, g.Group.Stats().Keys)
	})
}

func TestRestoreIntoAGroupInUse(t *testing.T) {
	playKeys(t, "1/s burst 4 depth 9", func(g *groupStage) {
		require.True(t, g.AllowN("a", 4))
		require.True(t, g.AllowN("b", 1))
		snapshot := snapshotOf(t, g.Group)
		require.NoError(t, g.next(snapshot))
		g.arriveAll("a1", "b1", "b2")
		require.NoError(t, g.Restore([]byte(snapshot)), "a restored bucket is not filled twice")
		require.Equal(t, map[string]float64{"a": 4, "b": 3}, g.levels())
		g.at(time.Minute)
		g.saw("0s b1 left", "0s b2 left", "1s a1 left")
	})
}

// The counts of Top outlive the process, and are added to its counts since.
func TestTopOutlivesARestart(t *testing.T) {
	playKeys(t, "1/h", func(g *groupStage) {
		refuse := func(key string, n int) {
			for range n + 1 {
				g.Allow(key)
			}
		}
		refuse("a", 5)
		refuse("b", 2)
		snapshot := snapshotOf(t, g.Group)
		require.NoError(t, g.next(`{"version":1,"of":"group","taken":"2000-01-01T00:00:00Z","buckets":[],"top":{"calls":0,"least":0,"keys":[]}}`))
		refuse("b", 4)
		refuse("c", 1)
		require.NoError(t, g.Restore([]byte(snapshot)))
		require.Equal(t, []watch.KeyCount[string]{{Key: "b", Count: 6}, {Key: "a", Count: 5}, {Key: "c", Count: 1}}, g.Top(9))
	})
}

// roundTrip takes keys through a snapshot, and returns the levels afterwards and the errors of
// both ways.
func roundTrip[K comparable](t *testing.T, keys ...K) (levels map[K]float64, saved, restored error) {
	t.Helper()
	limits := func(K) (shaper.Limits, error) { return shaper.Limits{Rate: 1, Burst: 99}, nil }
	before := must(shaper.NewGroup(limits))
	for i, key := range keys {
		require.True(t, before.AllowN(key, i+1))
		require.False(t, before.AllowN(key, 99))
	}
	data, saved := before.Snapshot()
	after := must(shaper.NewGroup(limits))
	restored = after.Restore(data)
	levels = map[K]float64{}
	for key, st := range after.All() {
		levels[key] = st.Level
	}
	return levels, saved, restored
}

type (
	tenant struct {
		Name string
		Tier int
	}
	secret struct{ name string }
	region string
)

func requireRoundTrip[K comparable](t *testing.T, keys ...K) {
	t.Helper()
	bubble(t, fmt.Sprintf("%T", *new(K)), func(t *testing.T) {
		levels, saved, restored := roundTrip(t, keys...)
		require.NoError(t, saved)
		require.NoError(t, restored)
		want := map[K]float64{}
		for i, key := range keys {
			want[key] = float64(i + 1)
		}
		require.Equal(t, want, levels)
	})
}

func TestKeysOfManyTypesOutliveARestart(t *testing.T) {
	requireRoundTrip(t, "", "plain", `"quoted" <html> & \`, "\x00", "Ä\u2028", "null", "{}", "not \xff UTF-8", "\xff", "�")
	requireRoundTrip(t, region("eu"), region("\x80"))
	requireRoundTrip(t, 0, -1, math.MaxInt, math.MinInt)
	requireRoundTrip(t, uint64(math.MaxUint64))
	requireRoundTrip(t, 0.1, math.MaxFloat64)
	requireRoundTrip(t, true, false)
	requireRoundTrip(t, tenant{"a", 1}, tenant{"a", 2}, tenant{})
	requireRoundTrip(t, [4]byte{192, 0, 2, 1}, [4]byte{})
	requireRoundTrip(t, netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1"), netip.Addr{})
	requireRoundTrip[any](t, "text", 1.5, nil, true)
}

// Keys that JSON can't hold are told, and cost the others nothing.
func TestKeysThatCannotBeWrittenAreLeftOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		levels, saved, restored := roundTrip(t, secret{"a"}, secret{"b"})
		require.ErrorContains(t, saved, "shaper: Snapshot: 4 keys can't be written as JSON and are left out; the first: key ")
		require.ErrorContains(t, saved, "of type shaper_test.secret: {} would be read as another key")
		require.NoError(t, restored)
		require.Empty(t, levels)
	})
	synctest.Test(t, func(t *testing.T) {
		levels, saved, restored := roundTrip[any](t, "text", 1, tenant{"a", 1}, complex(1, 1))
		require.ErrorContains(t, saved, "shaper: Snapshot: 6 keys")
		require.NoError(t, restored)
		require.Equal(t, map[any]float64{"text": 1}, levels)
	})
	synctest.Test(t, func(t *testing.T) {
		_, saved, _ := roundTrip(t, make(chan int))
		require.ErrorContains(t, saved, "unsupported type: chan int")
	})
	synctest.Test(t, func(t *testing.T) {
		g, err := shaper.NewGroup(func(float64) (shaper.Limits, error) { return shaper.Limits{Rate: 1}, nil })
		require.NoError(t, err)
		require.True(t, g.Allow(math.Inf(1))) // Before the NaN: one key in a thousand shares a bucket with it, and would be refused.
		g.Allow(math.NaN())
		g.Allow(math.NaN())
		_, err = g.Snapshot()
		require.ErrorContains(t, err, "1 keys can't", "a NaN is no key that could be found again")
		require.ErrorContains(t, err, "+Inf")
	})
}

func TestABadSnapshotOfAGroupChangesNothing(t *testing.T) {
	const head = `{"version":1,"of":"group","taken":"2000-01-01T00:00:00Z",`
	for data, want := range map[string]string{
		`{"version":2,"of":"group","taken":"2000-01-01T00:00:00Z"}`:                         "the snapshot has version 2",
		`{"version":1,"of":"shaper","taken":"2000-01-01T00:00:00Z"}`:                        `that of a "shaper", must be that of a "group"`,
		head + `"buckets":[{"level":"1","rate":1}],"top":{}}`:                               "damaged: there is a bucket without a key",
		head + `"buckets":[{"key":1,"level":"1","rate":1}],"top":{}}`:                       "damaged: a key of type string can't be read from 1",
		head + `"buckets":[{"key":null,"level":"1","rate":1}],"top":{}}`:                    "damaged: a key of type string can't be read from null",
		head + `"buckets":[{"key":{"base64":"%"},"level":"1","rate":1}],"top":{}}`:          "damaged: a key of type string can't be read",
		head + `"buckets":[null],"top":{}}`:                                                 "damaged: there is a bucket without a key",
		head + `"buckets":[{"key":"a","level":"1","rate":1},{"key":"b","level":"?"}]}`:      `damaged: the level "?"`,
		head + `"buckets":[{"key":"a","level":"1","rate":-1}]}`:                             "damaged: shaper: Limits.Rate is -1",
		head + `"buckets":[{"key":"a","level":"1","rate":1}],"top":{"calls":1,"least":2}}`:  "damaged: top has 1 calls, and 2",
		head + `"buckets":[],"top":{"calls":5,"keys":[{"key":"a","count":6}]}}`:             `damaged: top can't have the key "a" 6 times`,
		head + `"buckets":[],"top":{"calls":5,"keys":[{"key":"a","count":1,"error":2}]}}`:   `damaged: top can't have the key "a" 1 times, 2 of them`,
		head + `"buckets":[],"top":{"calls":5,"keys":[{"key":"a"},{"key":"a","count":1}]}}`: `damaged: top can't have the key "a" 1 times`,
		head + `"buckets":[],"top":{"calls":18446744073709551615}}`:                         "damaged: top has 18446744073709551615",
	} {
		playKeys(t, "1/s burst 3", func(g *groupStage) {
			require.True(t, g.AllowN("a", 3))
			require.False(t, g.Allow("a"))
			before := snapshotOf(t, g.Group)
			require.ErrorContains(t, g.Restore([]byte(data)), want, data)
			require.Equal(t, before, snapshotOf(t, g.Group))
		})
	}
	synctest.Test(t, func(t *testing.T) {
		g := must(shaper.NewGroup(func(any) (shaper.Limits, error) { return shaper.Limits{Rate: 1}, nil }))
		require.ErrorContains(t, g.Restore([]byte(head+`"buckets":[{"key":[1]}]}`)), "can't be compared")
		require.NoError(t, g.Close())
		require.Equal(t, shaper.ErrClosed, g.Restore([]byte(head+`"buckets":[],"top":{}}`)))
	})
}

func TestGroupSnapshotsOfVersion1AreRead(t *testing.T) {
	data, err := os.ReadFile("testdata/snapshot-group-v1.json")
	require.NoError(t, err)
	playKeys(t, "7/s burst 99", func(g *groupStage) {
		require.NoError(t, g.next(string(data), shaper.WithBlock(time.Hour))) // Taken a second before.
		st := map[string]string{}
		for key, s := range g.All() {
			st[key] = fmt.Sprint(s.Level, " ", s.HeldUntil.Sub(g.start) > 0, " ", s.BlockedUntil.Sub(g.start) > 0)
		}
		require.Equal(t, map[string]string{"alice": "30 false false", "bob": "0 true true", "\xff": "0.5 false false"}, st)
		require.Equal(t, []watch.KeyCount[string]{{Key: "alice", Count: 12, Error: 3}, {Key: "\xff", Count: 8, Error: 1}}, g.Top(9))
	})
}

func FuzzRestoreGroup(f *testing.F) {
	good, err := os.ReadFile("testdata/snapshot-group-v1.json")
	require.NoError(f, err)
	f.Add(good)
	f.Add([]byte(`{"version":1,"of":"group","taken":"2000-01-01T00:00:00Z","buckets":[{"key":[1]},{"key":{"a":{}}}],"top":{"keys":[{"key":[]}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		restoreAnything[string](t, data)
		restoreAnything[any](t, data)
		restoreAnything[tenant](t, data)
	})
}

// restoreAnything requires that a restored Group can be saved and restored again, with the same
// keys.
func restoreAnything[K comparable](t *testing.T, data []byte) {
	limits := func(K) (shaper.Limits, error) { return shaper.Limits{Rate: 7, Burst: 99}, nil }
	g := must(shaper.NewGroup(limits, shaper.WithMaxKeys(3), shaper.WithBlock(time.Hour)))
	defer func() { _ = g.Close() }()
	err := g.Restore(data)
	require.LessOrEqual(t, g.Stats().Keys, 3)
	if err != nil {
		require.Zero(t, g.Stats().Keys, "an error of keys can't come from these limits")
	}
	for key, st := range g.All() {
		require.GreaterOrEqual(t, st.Level, 0.0)
		_, _ = g.Limiter(key).Forecast(1)
	}
	again, err := g.Snapshot()
	require.NoError(t, err, "a key that could be read can be written")
	h := must(shaper.NewGroup(limits, shaper.WithBlock(time.Hour)))
	defer func() { _ = h.Close() }()
	require.NoError(t, h.Restore(again))
	require.Equal(t, g.Top(2000), h.Top(2000))
}

// While a snapshot of many keys is taken, and restored, other calls go on.
func TestManyKeysOutliveARestart(t *testing.T) {
	t.Parallel()
	keys := rounds(20_000, 100_000, 1_000_000) // A million take a quarter of a minute of CPU time.
	limits := func(int) (shaper.Limits, error) { return shaper.Limits{Rate: rate.Limit(1) / 3600, Burst: 3}, nil }
	before := must(shaper.NewGroup(limits, shaper.WithMaxKeys(keys)))
	for key := range keys {
		require.True(t, before.AllowN(key, 1+key%3))
	}
	begin := time.Now()
	data, err := before.Snapshot()
	require.NoError(t, err)
	took := time.Since(begin)
	require.NoError(t, before.Close())
	after := must(shaper.NewGroup(limits, shaper.WithMaxKeys(keys)))
	begin = time.Now()
	require.NoError(t, after.Restore(data))
	t.Logf("%d keys: Snapshot took %v, %d bytes; Restore took %v", keys, took, len(data), time.Since(begin))
	require.Equal(t, keys, after.Stats().Keys)
	for _, key := range []int{0, 1, keys / 2, keys - 1} {
		require.False(t, after.AllowN(key, 3-key%3))
		if key%3 < 2 {
			require.True(t, after.AllowN(key, 2-key%3))
		}
	}
	require.NoError(t, after.Close())
}

// A proxy restores its levels at each reload that makes new lines, and requests feel it.
func TestAKeyIsSavedAndRestoredWithFewAllocations(t *testing.T) {
	const keys = 1000
	limits := func(string) (shaper.Limits, error) {
		return shaper.Limits{Rate: rate.Every(time.Hour), Burst: 9}, nil
	}
	from := must(shaper.NewGroup(limits))
	for i := range keys {
		require.True(t, from.Allow(fmt.Sprint("client", i)))
	}
	perKey := testing.AllocsPerRun(3, func() {
		to := must(shaper.NewGroup(limits))
		snapshot, err := from.Snapshot()
		require.NoError(t, err)
		require.NoError(t, to.Restore(snapshot))
		require.Equal(t, keys, to.Stats().Keys)
		require.NoError(t, to.Close())
	}) / keys
	require.LessOrEqual(t, perKey, 60.)
	require.NoError(t, from.Close())
}

// firstLetter is the key of a path: the path /a1 has the key a, and / the empty one.
func firstLetter(r *http.Request) (string, error) { return r.URL.Path[1:min(2, len(r.URL.Path))], nil }

// siteOf puts a Group in front of a handler that notes that it runs.
func siteOf(g *groupStage, opts ...shaper.MiddlewareOption) *site {
	opts = append([]shaper.MiddlewareOption{shaper.WithCost(costInQuery)}, opts...)
	return &site{g.stage, g.Middleware(firstLetter, opts...)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		g.note(r.URL.Path[1:] + " runs")
	}))}
}

func TestEachKeysRequestsWaitInTheirOwnLine(t *testing.T) {
	playKeys(t, "1/s depth 1", func(g *groupStage) {
		v := siteOf(g)
		for _, path := range []string{"a1", "a2", "a3", "b1", "b2", "", ""} {
			v.visit(path)
		}
		g.at(300 * ms)
		v.cancel("b2")
		g.at(time.Minute)
		g.saw("0s a1 runs", "0s a1 200", "0s a3 429, retry 1", "1s a2 runs", "1s a2 200",
			"0s b1 runs", "0s b1 200", "300ms b2 499, close",
			"0s  runs", "0s  200", "1s  runs", "1s  200") // An empty key is like any other.
		require.NoError(t, g.Group.Close())
		v.visit("c1")
		g.saw("1m0s c1 503, retry 1")
	})
}

func TestCost0PassesWithoutItsKey(t *testing.T) {
	playKeys(t, "1/s", func(g *groupStage) {
		asked := 0
		h := g.Middleware(func(*http.Request) (string, error) {
			asked++
			return "", errors.New("not to be asked")
		}, shaper.WithCost(costInQuery))(http.NotFoundHandler())
		require.Equal(t, "404", statusLine(answerOf(h, context.Background(), "?cost=0")))
		require.Zero(t, asked)
		require.Equal(t, "500", statusLine(answerOf(h, context.Background(), "")))
		require.Equal(t, 1, asked)
	})
}

func TestAGroupsMiddlewareNeedsAKey(t *testing.T) {
	g := must(shaper.NewGroup(func(string) (shaper.Limits, error) { return shaper.Limits{Rate: 1}, nil }))
	require.PanicsWithValue(t, "shaper: Group.Middleware needs a function that tells the key of a request",
		func() { g.Middleware(nil) })
}

// What is the program's own fault is answered with 500, whatever is in the error, and
// can be found in a log.
func TestErrorsOfKeyAndLimitsAreAnsweredWith500(t *testing.T) {
	for _, failure := range []error{errors.New("no such tenant"), context.Canceled, shaper.ErrQueueFull,
		&shaper.RejectError{Reason: shaper.ErrTooLate, RetryAfter: time.Hour}} {
		for name, row := range map[string]struct {
			key func(*http.Request) (string, error)
			log string
		}{
			"key":    {func(*http.Request) (string, error) { return "a", failure }, "shaper: key of a request: "},
			"limits": {func(*http.Request) (string, error) { return "bad", nil }, "shaper: limits of a key: "},
		} {
			t.Run(name+" "+failure.Error(), func(t *testing.T) {
				playKeys(t, "1/s", func(g *groupStage) {
					g.says("bad", func() (shaper.Limits, error) { return shaper.Limits{}, failure })
					var lines bytes.Buffer
					h := g.Middleware(row.key, shaper.WithLogger(newLog(&lines, slog.LevelInfo)), shaper.WithHeaders(shaper.HeaderRateLimit))(http.NotFoundHandler())
					answer := answerOf(h, context.Background(), "")
					require.Equal(t, "500", statusLine(answer))
					require.Empty(t, answer.Header.Values("RateLimit"))
					require.Contains(t, lines.String(), "status=500")
					if _, ok := errors.AsType[*shaper.RejectError](failure); !ok {
						require.Contains(t, lines.String(), row.log+failure.Error())
					}
					var got error
					h = g.Middleware(row.key, shaper.WithErrorHandler(func(_ http.ResponseWriter, _ *http.Request, err error) { got = err }))(http.NotFoundHandler())
					answerOf(h, context.Background(), "")
					require.ErrorIs(t, got, failure)
					require.Equal(t, 0, g.Group.Stats().Keys)
				})
			})
		}
	}
}

func TestRateLimitFieldsAreThoseOfTheKey(t *testing.T) {
	playKeys(t, "1 per 10s burst 3", func(g *groupStage) {
		g.limit("p", "10/s burst 100")
		v := siteOf(g, shaper.WithHeaders(shaper.HeaderRateLimit))
		for _, row := range []struct{ path, status, policy, state string }{
			{"a?cost=2", "200", `"api";q=3;w=30`, `"api";r=1;t=20`},
			{"b", "200", `"api";q=3;w=30`, `"api";r=2;t=10`},
			{"p?cost=60", "200", `"api";q=100;w=10`, `"api";r=40;t=6`},
			{"a?cost=2", "429, retry 10", `"api";q=3;w=30`, `"api";r=1;t=10`},
			{"a?cost=4", "429", `"api";q=3;w=30`, `"api";r=1;t=20`},
		} {
			answer := answerOf(v, context.Background(), row.path)
			require.Equal(t, row.status, statusLine(answer), row.path)
			require.Equal(t, row.policy, answer.Header.Get("RateLimit-Policy"), row.path)
			require.Equal(t, row.state, answer.Header.Get("RateLimit"), row.path)
		}
	}, shaper.WithName("api"))
}

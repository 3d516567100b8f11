package config_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/config"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
	"example.com/leakybucket/shaper/shared"
)

// fairText is a file whose keys share 1/s, with weights behind it.
func fairText(weights string) string {
	return "default: 1/s depth 9\nfair: {by: header X-Team, weights: {" + weights + "}}"
}

func TestWeightsAreThoseOfWholeKeys(t *testing.T) {
	rules := parse(t, fairText("gold: 4, silver%2Fgold: 2"))
	by, weight, ok := rules.Fair()
	require.True(t, ok)
	require.Equal(t, "header X-Team", by)
	for key, want := range map[string]int{"gold": 4, "silver%2Fgold": 2, "gold/x": 1, "gol": 1, "": 1} {
		require.Equal(t, want, weight(key), key)
	}
	fair, ok := rules.ExplainFair()
	require.True(t, ok)
	require.Equal(t, config.Fair{By: "header X-Team", File: "shaper.yaml", Line: 2, Weights: []config.Weight{{Key: "gold", Weight: 4, Line: 2}, {Key: "silver%2Fgold", Weight: 2, Line: 2}}}, fair)
	fair.Weights[0].Weight = 9
	require.Equal(t, 4, weight("gold"), "it is a copy")

	_, weight, ok = parse(t, "default: 1/s").Fair()
	require.False(t, ok)
	require.Nil(t, weight)
	_, ok = parse(t, "default: 1/s").ExplainFair()
	require.False(t, ok)
}

func TestFairIsWrittenOut(t *testing.T) {
	text, err := parse(t, "fair: {weights: {silver: 2, '~': 3}, by: 'header #x'}\ndefault: 1/s depth 9\nlimits: {}").MarshalText()
	require.NoError(t, err)
	require.Equal(t, `default: 1/s depth 9
fair:
  by: "header #x"
  weights:
    "silver": 2
    "~": 3
`, string(text))
	text, err = parse(t, "fair: {by: host, weights: {}}\ndefault: 1/s depth 9").MarshalText()
	require.NoError(t, err)
	require.Equal(t, "default: 1/s depth 9\nfair:\n  by: \"host\"\n", string(text))
}

// A later layer replaces what an earlier one says of fair queueing whole, or takes it away. What stands
// beside it is that of all layers together.
func TestLayersOfFair(t *testing.T) {
	base := "default: 1/s depth 9\nfair: {by: header X-Team, weights: {gold: 4, silver: 2}}"
	for _, c := range []struct {
		layers []string
		by     string // "": there is no fair
		gold   int
		silver int
		err    string
	}{
		{layers: []string{base, "limits: {}"}, by: "header X-Team", gold: 4, silver: 2},
		{layers: []string{base, "fair: {by: host, weights: {silver: 3}}"}, by: "host", gold: 1, silver: 3},
		{layers: []string{base, "fair: ~"}},
		{layers: []string{base, "fair: ~", "fair: {by: host}"}, by: "host", gold: 1, silver: 1},
		{layers: []string{base, "limits: {api: 1/s}", "fair: ~"}},
		{layers: []string{base, "limits: {api: 1/s}", "limits: {api: ~}"}, by: "header X-Team", gold: 4, silver: 2},
		{layers: []string{"fair: {by: host}", "default: 2/s"}, by: "host", gold: 1, silver: 1},
		{layers: []string{base, "\nlimits: {api: 1/s}"}, err: "0.yaml:2:1: fair: the rule api (1.yaml:2) gives keys a rate of their own, but with fair all keys share the rate of the default"},
		{layers: []string{"limits: {api: 1/s}\ndefault: 1/s", "# teams\nfair: {by: host}"}, err: "1.yaml:2:1: fair: the rule api (0.yaml:1) gives"},
		{layers: []string{base, "default: {rate: 1/s, candidate: 2/s}"}, err: "0.yaml:2:1: fair: the default (1.yaml:1) has a candidate"},
		{layers: []string{base, "default: ~"}, err: "0.yaml:2:1: fair: there is no default"},
	} {
		var layers []config.Layer
		for i, text := range c.layers {
			layers = append(layers, config.Layer{Name: fmt.Sprintf("%d.yaml", i), Text: []byte(text)})
		}
		rules, err := config.ParseLayers(layers...)
		if c.err != "" {
			require.ErrorContains(t, err, c.err)
			continue
		}
		require.NoError(t, err)
		by, weight, ok := rules.Fair()
		require.Equal(t, c.by != "", ok, "%q", c.layers)
		require.Equal(t, c.by, by)
		if ok {
			require.Equal(t, c.gold, weight("gold"))
			require.Equal(t, c.silver, weight("silver"))
		}
	}
}

// Whoever takes the one for the other would give each key the whole rate, or all keys one line.
func TestOpenAndOpenFairRefuseTheFilesOfEachOther(t *testing.T) {
	const notFair = `neither this file nor a later one says "fair", which the program needs (in Go, config.Open is for such a file)`
	const isFair = "the program gives each key a rate of its own, and has no line for all keys (in Go, config.OpenFair is for such a file)"
	for _, c := range []struct {
		open              func(...string) (*config.File, error)
		right, wrong, err string
	}{
		{config.Open, "default: 1/s", fairText("gold: 4"), ":2:1: fair: " + isFair},
		{config.OpenFair, fairText("gold: 4"), "default: 1/s", ": " + notFair},
	} {
		path := write(t, t.TempDir(), "f.yaml", c.wrong)
		_, err := c.open(path)
		require.EqualError(t, err, path+c.err)
		_, ok := errors.AsType[config.Errors](err)
		require.True(t, ok)

		write(t, "", path, c.right)
		f, err := c.open(path)
		require.NoError(t, err)
		defer f.Close()
		before := f.Rules()
		write(t, "", path, c.wrong)
		require.EqualError(t, f.Reload(), path+c.err)
		require.Same(t, before, f.Rules())
		require.EqualError(t, f.Status().Err, path+c.err)
	}
	_, err := config.OpenFair()
	require.EqualError(t, err, "config: OpenFair: there are no files, must be at least one")
	f, err := config.Open(write(t, t.TempDir(), "f.yaml", "default: 1/s"))
	require.NoError(t, err)
	defer f.Close()
	require.Equal(t, 1, f.Weight("gold"))
	_, err = f.NewShaper()
	require.EqualError(t, err, "config: NewShaper: the File is of Open, must be of OpenFair")
}

// A changed file re-times the line and drops no request in it, and a key has its new weight once its line
// has been empty.
func TestALineKeepsItsRequestsWhenItsFileChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := write(t, t.TempDir(), "f.yaml", fairText(""))
		f, err := config.OpenFair(path)
		require.NoError(t, err)
		defer f.Close()
		s, err := f.NewShaper(shaper.WithName("line"))
		require.NoError(t, err)
		defer s.Close()
		require.Equal(t, "line", s.Stats().Name)
		require.NoError(t, s.Wait(context.Background()))

		begun := time.Now()
		var left []string
		var mu sync.Mutex
		var calls sync.WaitGroup
		enter := func(keys string) {
			for _, key := range strings.Fields(keys) {
				calls.Go(func() {
					if err := s.For(key).Wait(context.Background()); err != nil {
						t.Error(err)
					}
					mu.Lock()
					defer mu.Unlock()
					left = append(left, key+time.Since(begun).String())
				})
				synctest.Wait()
			}
		}
		enter("a a gold gold")
		time.Sleep(1500 * time.Millisecond)
		// gold has requests in line, so its weight of 4 is for later. Half of the next slot is over.
		write(t, "", path, strings.Replace(fairText("gold: 4"), "1/s", "2/s", 1))
		require.NoError(t, f.Reload())
		require.Equal(t, 4, f.Weight("gold"))
		calls.Wait()
		require.Equal(t, []string{"a1s", "gold1.75s", "a2.25s", "gold2.75s"}, left)

		left, begun = nil, time.Now()
		enter("a a gold gold gold gold gold")
		calls.Wait()
		require.Equal(t, []string{"gold500ms", "gold1s", "gold1.5s", "a2s", "gold2.5s", "gold3s", "a3.5s"}, left)
	})
}

// Limits that the line can't have are a mistake of the change, so what the File says and what the line
// does stay the same.
func TestLimitsThatTheLineCannotHaveAreNotPutInForce(t *testing.T) {
	path := write(t, t.TempDir(), "f.yaml", fairText(""))
	f, err := config.OpenFair(path)
	require.NoError(t, err)
	defer f.Close()
	first, err := f.NewShaper()
	require.NoError(t, err)
	defer first.Close()
	before := f.Rules()
	for _, changed := range []string{"default: 2/s inflight 3", "default: 2/s inflight 3 depth 1"} {
		write(t, "", path, changed+"\nfair: {by: host}")
		require.ErrorContains(t, f.Reload(), path+":2:1: fair: the line can't have the limits of the default now: Limits.InFlight is 0 and can't become 3 while the shaper is in use")
		require.Same(t, before, f.Rules())
		require.EqualValues(t, 1, first.Limits().Rate)
	}
	_, err = f.NewShaper(shaper.WithDryRun())
	require.ErrorContains(t, err, "WithFairQueue and WithDryRun don't go together")
}

// Of two lines of a file both get the new limits, or none does.
func TestAllLinesOfAFileHaveTheSameLimits(t *testing.T) {
	path := write(t, t.TempDir(), "f.yaml", fairText(""))
	f, err := config.OpenFair(path)
	require.NoError(t, err)
	defer f.Close()
	own, err := f.NewShaper()
	require.NoError(t, err)
	defer own.Close()
	shared, err := f.NewShaper(shaper.WithBucket(buckettest.NewMemory(), "line", shared.Options{}))
	require.NoError(t, err)
	defer shared.Close()
	write(t, "", path, "default: 3/s\nfair: {by: host}")
	require.NoError(t, f.Reload())
	write(t, "", path, "default: inf\nfair: {by: host}")
	require.ErrorContains(t, f.Reload(), path+":2:1: fair: the line can't have the limits of the default now: ")
	for _, s := range []*shaper.Shaper{own, shared} {
		require.EqualValues(t, 3, s.Limits().Rate)
	}
}

func TestRoutesStandInTheKeysOfWeights(t *testing.T) {
	mux, err := parse(t, "default: 1/s\nfair: {by: route host, weights: {\"GET %2Forders%2F{id}/-\": 2, other/-: 3}}").Routes(0)
	require.NoError(t, err)
	require.Equal(t, "GET /orders/{id}", routeOf(t, mux, "GET", "/orders/7"))
	_, err = parse(t, "default: 1/s\nfair: {by: route, weights: {\"GET %2F{\": 2}}").Routes(0)
	require.ErrorContains(t, err, `shaper.yaml:2: "GET %2F{": "GET /{" cannot be a route`)
}

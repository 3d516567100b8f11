package config_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/adapt"
	"example.com/leakybucket/config"
	"example.com/leakybucket/shaper"
)

const adaptText = "default: 100/s depth 9\nfair: {by: host}\nadapt: {slow: 300ms, min: 5/s, max: 200/s, start: 1 per 100ms}"

func TestTheBoundsOfARateThatAdapts(t *testing.T) {
	a, ok := parse(t, adaptText).Adapt()
	require.True(t, ok)
	require.Equal(t, adapt.Config{Min: 5, Max: 200, Start: 10, Slow: 300 * time.Millisecond}, a.Config)
	require.Equal(t, "slow 300ms min 5/s max 200/s start 1 per 100ms", a.String())
	require.Equal(t, "shaper.yaml:3", a.File+":"+string(rune('0'+a.Line)))

	_, ok = parse(t, "default: 100/s\nfair: {by: host}").Adapt()
	require.False(t, ok)
	a, ok = parse(t, "default: 100/s\nfair: {by: host}\nadapt: {}").Adapt()
	require.True(t, ok)
	require.Empty(t, a.String())
}

// A later layer replaces adapt whole, or takes it away; and without it leaves it.
func TestALaterLayerSaysHowTheRateAdapts(t *testing.T) {
	for later, want := range map[string]string{
		"adapt: {min: 7/s}":           "min 7/s",
		"adapt: ~":                    "",
		"default: 50/s":               "slow 300ms min 5/s max 200/s start 1 per 100ms",
		"fair: {by: host}\nadapt: {}": "",
	} {
		rules, err := config.ParseLayers(config.Layer{Name: "a", Text: []byte(adaptText)}, config.Layer{Name: "b", Text: []byte(later)})
		require.NoError(t, err, later)
		a, ok := rules.Adapt()
		require.Equal(t, later != "adapt: ~", ok)
		require.Equal(t, want, a.String(), later)
	}
	_, err := config.ParseLayers(config.Layer{Name: "a", Text: []byte(adaptText)}, config.Layer{Name: "b", Text: []byte("fair: ~")})
	require.ErrorContains(t, err, "a:3:1: adapt: stands beside fair")
	_, err = config.ParseLayers(config.Layer{Name: "a", Text: []byte(adaptText)}, config.Layer{Name: "b", Text: []byte("default: 50/s burst 500000000")})
	require.ErrorContains(t, err, "a:3:1: adapt: can't be: Config.Min is 5: shaper: Limits.Burst is 500000000")
}

func TestAdaptIsWrittenOut(t *testing.T) {
	for text, want := range map[string]string{
		adaptText: "default: 100/s depth 9\nfair:\n  by: \"host\"\nadapt:\n  slow: \"300ms\"\n  min: \"5/s\"\n  max: \"200/s\"\n  start: \"1 per 100ms\"\n",
		"default: 1/s\nfair: {by: host}\nadapt: {}": "default: 1/s depth 0\nfair:\n  by: \"host\"\nadapt: {}\n",
	} {
		rules := parse(t, text)
		written, err := rules.MarshalText()
		require.NoError(t, err)
		require.Equal(t, want, string(written))
		before, _ := rules.Adapt()
		after, ok := parse(t, string(written)).Adapt()
		require.True(t, ok)
		require.Equal(t, before.Config, after.Config)
	}
}

// A change of the files that leaves the rate as it is keeps the rate that was found; another rate is the new ceiling.
func TestAChangeOfFilesKeepsTheRateThatWasFound(t *testing.T) {
	name := filepath.Join(t.TempDir(), "rules.yaml")
	write := func(text string) { require.NoError(t, os.WriteFile(name, []byte(text), 0o600)) }
	write(adaptText)
	f, err := config.OpenFair(name)
	require.NoError(t, err)
	defer f.Close()
	s, err := f.NewShaper()
	require.NoError(t, err)
	bounds, _ := f.Rules().Adapt()
	a, err := adapt.New(s, bounds.Config)
	require.NoError(t, err)
	a.Observe(adapt.Refused, 0)
	for _, tt := range []struct{ text, limits string }{
		{"default: 100/s depth 20\nfair: {by: host}\nadapt: {min: 1/s}", "9/s depth 20"},
		{"default: 8/s depth 20\nfair: {by: host}\nadapt: {min: 1/s}", "8/s depth 20"},
	} {
		write(tt.text)
		require.NoError(t, f.Reload())
		require.Equal(t, tt.limits, s.Limits().String())
	}
	a.Observe(adapt.OK, 0)
	require.Equal(t, shaper.Limits{Rate: 8, Depth: 20}, a.Limits())
	write("default: 100/s depth 5\nfair: {by: host}")
	require.NoError(t, f.Reload())
	require.Equal(t, "100/s depth 5", s.Limits().String())
}

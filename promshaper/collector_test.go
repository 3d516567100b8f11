package promshaper_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/promshaper"
	"example.com/leakybucket/shaper"
)

func TestAddSaysWhatIsWrong(t *testing.T) {
	c := promshaper.New(nil)
	source := promshaper.Of(newShaper(t, "1/s"))
	add(t, c, "login", source)
	for _, bad := range []struct {
		rule   string
		source promshaper.Source
		err    string
	}{
		{"login", source, `promshaper: there is a source of rule "login" already`},
		{"", source, "promshaper: the name of a rule is empty"},
		{"other", nil, `promshaper: the source of rule "other" is nil`},
		{"a\xff", source, `promshaper: the name of rule "a\xff" is not valid UTF-8`},
	} {
		remove, err := c.Add(bad.rule, bad.source)
		require.EqualError(t, err, bad.err)
		require.Nil(t, remove)
	}
	require.NotEmpty(t, gather(t, registryWith(t, c)))
}

// A configuration that is replaced takes its sources away and adds others of the same names.
func TestASourceThatIsRemovedIsNotToldAnyMore(t *testing.T) {
	c := promshaper.New()
	r := registryWith(t, c)
	require.Empty(t, gather(t, r))
	first := newShaper(t, "1/s")
	remove := add(t, c, "login", promshaper.Of(first))
	add(t, c, "search", promshaper.OfGroup(newGroup(t, "1/s")))
	require.True(t, first.Allow())
	require.EqualValues(t, 1, value(gather(t, r)["shaper_requests_total{departed,login}"]))

	remove()
	for name := range gather(t, r) {
		require.False(t, strings.Contains(name, "login"), name)
	}
	add(t, c, "login", promshaper.Of(newShaper(t, "1/s")))
	remove() // of the first one only
	metrics := gather(t, r)
	require.Zero(t, value(metrics["shaper_requests_total{departed,login}"]))
	require.NotNil(t, metrics["shaper_keys{search}"])
}

func TestTwoCollectorsNeedALabelThatTellsThemApart(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	for _, site := range []string{"blue", "green"} {
		c := promshaper.New()
		add(t, c, "login", promshaper.Of(newShaper(t, "1/s")))
		require.NoError(t, prometheus.WrapRegistererWith(prometheus.Labels{"site": site}, r).Register(c))
	}
	require.NotNil(t, gather(t, r)["shaper_level_units{login,blue}"])
	require.NotNil(t, gather(t, r)["shaper_level_units{login,green}"])
}

// A scrape costs the same however many keys a Group has, and no key becomes a label.
func TestKeysAreNeverLabels(t *testing.T) {
	g := newGroup(t, "1/s")
	r := of(t, "clients", promshaper.OfGroup(g))
	before := len(gather(t, r))
	for _, key := range []string{"secret-1", "secret-2", "secret-3"} {
		g.Allow(key)
	}
	after := gather(t, r)
	require.Len(t, after, before)
	require.EqualValues(t, 3, value(after["shaper_keys{clients}"]))
	for name := range after {
		require.NotContains(t, name, "secret")
	}
}

// A panic in the middle of a scrape would end the program, long after the mistake was made.
func TestASourceOfNothingPanicsWhereItIsMade(t *testing.T) {
	require.Panics(t, func() { promshaper.Of(nil) })
	require.Panics(t, func() { promshaper.Of(new(shaper.Shaper)) })
	require.Panics(t, func() { promshaper.OfGroup[string](nil) })
	require.Panics(t, func() { promshaper.OfGroup(new(shaper.Group[string])) })
}

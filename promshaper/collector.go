package promshaper

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/leakybucket/adapt"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/watch"
)

// A Collector is a [prometheus.Collector] over Shapers and Groups.
//
// Make one with [New], register it, and give it sources with [Collector.Add], before or
// after that. All metrics have a label "rule", which is the name of the source, so that one
// Collector is enough for a program. Two in one registry collide, unless
// [prometheus.WrapRegistererWith] tells them apart by another label. One Collector may be in
// several registries.
//
// Nothing is done between two scrapes. A scrape asks each source once for its Histograms and then
// once for its Stats: all counters and gauges of a source are of one instant, and its histograms
// of the instant just before.
//
// A Collector is safe for concurrent use.
type Collector struct {
	waitBuckets []int // upper bounds of the classic buckets of shaper_wait_seconds

	mu      sync.Mutex
	sources []*named // the slice is replaced, never changed
}

// A named is a [Source] under its name.
type named struct {
	rule   string
	source Source
}

// An Option changes the report of a [Collector].
type Option interface{ apply(*Collector) }

type option func(*Collector)

func (o option) apply(c *Collector) { o(c) }

// New makes a [Collector] without sources. It panics if an [Option] is wrong, as the
// functions of package prometheus do, and says how.
func New(opts ...Option) *Collector {
	c := &Collector{waitBuckets: defaultWaitBuckets}
	for _, opt := range opts {
		if opt != nil {
			opt.apply(c)
		}
	}
	return c
}

// Add makes the Collector report a source from now on. rule is the value of the label of that
// name: which limits these are, such as "login" or "upstream", and never a key, because Prometheus keeps
// a time series for each value that it has ever seen.
//
// The function that Add returns takes the source away again. It may be called several times.
//
// Add returns an error if there is no source, if rule is empty or not valid UTF-8, or if
// another source has that name.
func (c *Collector) Add(rule string, source Source) (remove func(), err error) {
	switch {
	case source == nil:
		return nil, fmt.Errorf("promshaper: the source of rule %q is nil", rule)
	case rule == "":
		return nil, errors.New("promshaper: the name of a rule is empty")
	case !utf8.ValidString(rule):
		return nil, fmt.Errorf("promshaper: the name of rule %q is not valid UTF-8", rule)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if slices.ContainsFunc(c.sources, func(n *named) bool { return n.rule == rule }) {
		return nil, fmt.Errorf("promshaper: there is a source of rule %q already", rule)
	}
	added := &named{rule, source}
	c.sources = append(slices.Clone(c.sources), added)
	return func() { c.remove(added) }, nil
}

func (c *Collector) remove(gone *named) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sources = slices.DeleteFunc(slices.Clone(c.sources), func(n *named) bool { return n == gone })
}

// Describe sends the descriptions of all metrics that a Collector may report. It is for the
// registry.
func (c *Collector) Describe(descs chan<- *prometheus.Desc) {
	for _, f := range families {
		descs <- f.desc
	}
	descs <- waitDesc
	descs <- spacingDesc
}

// Collect sends the metrics of all sources as they are now. It is for the registry.
func (c *Collector) Collect(metrics chan<- prometheus.Metric) {
	c.mu.Lock()
	sources := c.sources
	c.mu.Unlock()
	for _, n := range sources {
		r := n.source.read()
		for _, f := range families {
			f.sample(r, func(v float64, labels ...string) {
				metrics <- prometheus.MustNewConstMetric(f.desc, f.kind, v, append([]string{n.rule}, labels...)...)
			})
		}
		metrics <- newHistogram(waitDesc, r.histograms.Wait, c.waitBuckets, n.rule)
		metrics <- newHistogram(spacingDesc, r.histograms.Spacing, spacingBuckets, n.rule)
	}
}

// A Source can be reported by a [Collector]. [Of] makes one of a Shaper, [OfAdaptive] of one
// whose rate adapts, and [OfGroup] of a Group.
type Source interface{ read() *reading }

// A reading is the state of a source.
type reading struct {
	at         time.Time
	histograms watch.Histograms

	// Stats are from a Shaper. For a Group only the fields are set that its own Stats
	// have too.
	shaper.Stats
	group  *shaper.GroupStats  // nil for a Shaper
	meters []shaper.MeterStats // of a Shaper
	adapt  *adapt.Stats        // of a Shaper whose rate adapts; nil: it does not
}

// Of makes a [Source] of a Shaper. A closed one goes on telling its totals. Of panics if s is nil
// or was not made by [shaper.New], as the Shaper's methods do.
func Of(s *shaper.Shaper) Source {
	s.Limits() // A panic is better here than in the middle of a scrape.
	return ofShaper{s}
}

type ofShaper struct{ s *shaper.Shaper }

// read asks for the Histograms first, so that they never have a request that the Stats do not
// have yet.
func (s ofShaper) read() *reading {
	h := s.s.Histograms()
	return &reading{at: time.Now(), histograms: h, Stats: s.s.Stats(), meters: s.s.Meters()}
}

// OfAdaptive is [Of] for a Shaper whose rate a Controller changes, and tells about the Controller too. It panics if one of
// them is nil.
func OfAdaptive(s *shaper.Shaper, a *adapt.Controller) Source {
	a.Stats()
	return ofAdaptive{Of(s), a}
}

type ofAdaptive struct {
	Source
	a *adapt.Controller
}

func (o ofAdaptive) read() *reading {
	r, st := o.Source.read(), o.a.Stats()
	r.adapt = &st
	return r
}

// OfGroup makes a [Source] of a Group: of all its keys together, as a time series for each key
// would be more than Prometheus can keep. Package inspect shows single keys. OfGroup panics if g is
// nil or was not made by [shaper.NewGroup].
func OfGroup[K comparable](g *shaper.Group[K]) Source {
	g.Stats()
	return ofGroup[K]{g}
}

type ofGroup[K comparable] struct{ g *shaper.Group[K] }

func (g ofGroup[K]) read() *reading {
	h := g.g.Histograms()
	st := g.g.Stats()
	return &reading{at: time.Now(), histograms: h, group: &st, Stats: shaper.Stats{
		Waiting: st.Waiting, DryRun: st.DryRun, NoKernelTimer: st.NoKernelTimer,
		Departed: st.Departed, Refused: st.Refused, Abandoned: st.Abandoned,
		QueueFull: st.QueueFull, TooLate: st.TooLate, TooCostly: st.TooCostly, Closed: st.Closed, Unavailable: st.Unavailable,
		Missed: st.Missed, Bucket: st.Bucket,
		Reserved: st.Reserved, GivenBack: st.GivenBack, Charged: st.Charged, Forfeited: st.Forfeited,
	}}
}

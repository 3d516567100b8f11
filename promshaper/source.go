package promshaper

import (
	"time"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/watch"
)

// A Source can be reported by a [Collector]. [Of] makes one of a Shaper, [OfGroup] of a
// Group.
type Source interface{ read() *reading }

// A reading is the state of a source.
type reading struct {
	at         time.Time
	histograms watch.Histograms

	// Stats are from a Shaper. For a Group only the fields are set that its own Stats
	// have too.
	shaper.Stats
	group *shaper.GroupStats // nil for a Shaper
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
	return &reading{at: time.Now(), histograms: h, Stats: s.s.Stats()}
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

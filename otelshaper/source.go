package otelshaper

import "example.com/leakybucket/shaper"

// A Source is what [Instruments.Observe] can report. [Of] makes one of a Shaper, [OfGroup] of a
// Group.
type Source interface{ read() *reading }

// A reading is the state of a source at one instant.
type reading struct {
	// Stats are from a Shaper. For a Group only the fields are set that its own Stats
	// have too.
	shaper.Stats
	group *shaper.GroupStats // nil for a Shaper
}

// Of makes a [Source] of a Shaper. A closed one goes on telling its totals. Of panics if s is nil
// or was not made by [shaper.New], as the Shaper's methods do.
func Of(s *shaper.Shaper) Source {
	s.Limits() // A panic is better here than in the middle of a collection.
	return ofShaper{s}
}

type ofShaper struct{ s *shaper.Shaper }

func (s ofShaper) read() *reading { return &reading{Stats: s.s.Stats()} }

// OfGroup makes a [Source] of a Group, of all its keys together. It panics if g is nil or was not
// made by [shaper.NewGroup].
func OfGroup[K comparable](g *shaper.Group[K]) Source {
	g.Stats()
	return ofGroup[K]{g}
}

type ofGroup[K comparable] struct{ g *shaper.Group[K] }

func (g ofGroup[K]) read() *reading {
	st := g.g.Stats()
	return &reading{group: &st, Stats: shaper.Stats{
		Waiting: st.Waiting, Departed: st.Departed, Abandoned: st.Abandoned,
		QueueFull: st.QueueFull, TooLate: st.TooLate, TooCostly: st.TooCostly, Closed: st.Closed, Unavailable: st.Unavailable,
		Missed: st.Missed, Bucket: st.Bucket,
		Reserved: st.Reserved, GivenBack: st.GivenBack, Charged: st.Charged, Forfeited: st.Forfeited,
	}}
}

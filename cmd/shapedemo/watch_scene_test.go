package main

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// watchFor gives the sign of a page each second, for as long as d.
func watchFor(s *scene, d time.Duration) {
	for range d / time.Second {
		s.watch()
		time.Sleep(time.Second)
	}
}

func TestTheScenePlaysWhileAPageIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proxy := &stubbedProxy{}
		c := clientsAt(proxy)
		s := newScene(c, limitsOf(t, defaultLimits))
		defer c.close()
		defer s.close()
		time.Sleep(time.Hour)
		require.Empty(t, proxy.at(), "nobody watches")

		begin := time.Since(proxy.begin)
		watchFor(s, 10*time.Second)
		time.Sleep(unwatchedAfter)
		synctest.Wait()
		came := proxy.at()
		// The last sign came after 9 s, so the scene ends after 12 s. Meanwhile there are
		// 25 clients a second, and two bursts of 152, of which three in ten come at once.
		require.Equal(t, 46, came[begin+sceneLead])
		require.Equal(t, 46, came[begin+sceneLead+scenePeriod])
		require.Equal(t, 2*152+12*25, proxy.total())

		time.Sleep(time.Hour)
		require.Equal(t, came, proxy.at(), "nobody watches any more")
	})
}

func TestAVisitorsWishOutlastsASignButNotTheVisit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proxy := &stubbedProxy{}
		c := clientsAt(proxy)
		s := newScene(c, limitsOf(t, defaultLimits))
		defer c.close()
		defer s.close()
		s.watch()
		s.play(false)
		watchFor(s, 5*time.Second)
		require.Empty(t, proxy.at())
		time.Sleep(time.Millisecond) // Between two beats.
		s.flow(true)
		watchFor(s, 2*time.Second)
		time.Sleep(sceneBeat - 2*time.Millisecond) // The last beat's clients come.
		s.flow(false)
		require.Equal(t, 2*40, proxy.total())
		time.Sleep(unwatchedAfter + sceneBeat)
		synctest.Wait()

		s.watch()
		playing, steady := s.state()
		require.True(t, playing, "for the next visitor")
		require.False(t, steady)
	})
}

// A line that needs long to drain would never be empty if a burst came every few
// seconds; and however large the line is, the scene stays small.
func TestTheSceneFitsTheLimits(t *testing.T) {
	for limits, want := range map[string]struct {
		burst  int
		period time.Duration
	}{
		defaultLimits:                 {152, 8 * time.Second},
		"10/s depth 100":              {152, 15 * time.Second},
		"1/min depth 100":             {152, 90 * time.Second},
		"50/s":                        {3, 8 * time.Second},
		"1000000/s depth 1000000":     {300, 8 * time.Second},
		"inf":                         {300, 8 * time.Second},
		"inf depth 10 inflight 4":     {300, 8 * time.Second},
		"1000000000/s burst 99999999": {300, 8 * time.Second},
	} {
		s := newScene(nil, limitsOf(t, limits))
		require.Equal(t, want.burst, s.burst, limits)
		require.Equal(t, min(want.period, time.Minute), s.period, limits)
	}
}

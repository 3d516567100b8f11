package main

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A stubbed proxy answers in virtual time, and records when requests came.
type stubbedProxy struct {
	begin  time.Time
	answer func(n int) result // to the n-th request, from 1; nil: served
	takes  time.Duration

	mu   sync.Mutex
	came []time.Duration // after begin
}

// clientsAt returns simulatedClients whose requests go to s. They must be made in a bubble.
func clientsAt(s *stubbedProxy) *simulatedClients {
	s.begin = time.Now()
	return &simulatedClients{now: newSession(), send: s.serve}
}

func (s *stubbedProxy) serve(ctx context.Context, _ string) result {
	s.mu.Lock()
	s.came = append(s.came, time.Since(s.begin))
	n := len(s.came)
	s.mu.Unlock()
	sleep(ctx, s.takes)
	switch {
	case ctx.Err() != nil:
		return result{}
	case s.answer != nil:
		return s.answer(n)
	}
	return result{status: http.StatusOK}
}

// at returns how many requests came at each instant.
func (s *stubbedProxy) at() map[time.Duration]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	count := map[time.Duration]int{}
	for _, d := range s.came {
		count[d]++
	}
	return count
}

func (s *stubbedProxy) total() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.came)
}

func TestABurstOfThePageComesAtOneInstant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stubbedProxy{}
		c := clientsAt(s)
		defer c.close()
		e := &errand{name: "burst", clients: 150}
		require.NoError(t, c.burst(e, 0, nil))
		synctest.Wait()
		require.Equal(t, map[time.Duration]int{0: 150}, s.at())
		got, ended := e.report()
		require.True(t, ended)
		require.Equal(t, tally{sent: 150, served: 150}, got)
		require.Same(t, e, c.latestErrand())
	})
}

// All clients come together. Those that are refused come back together, as their
// Retry-After is the same: a herd.
func TestARefusedHerdComesBackTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stubbedProxy{}
		served := map[time.Duration]int{}
		s.answer = func(int) result {
			s.mu.Lock()
			defer s.mu.Unlock()
			now := time.Since(s.begin)
			if served[now]++; served[now] > 50 {
				return result{status: http.StatusTooManyRequests, retryAfter: time.Second}
			}
			return result{status: http.StatusOK}
		}
		c := clientsAt(s)
		defer c.close()
		e := &errand{name: "herd", clients: 180}
		require.NoError(t, c.herd(e))
		synctest.Wait()
		require.ErrorIs(t, c.herd(&errand{clients: 1}), errOneHerd)
		time.Sleep(5 * time.Second)
		require.Equal(t, map[time.Duration]int{0: 180, time.Second: 130, 2 * time.Second: 80, 3 * time.Second: 30}, s.at())
		got, ended := e.report()
		require.True(t, ended)
		require.Equal(t, tally{sent: 420, served: 180, refused: 240}, got)
		require.NoError(t, c.herd(&errand{clients: 1}), "the first one has ended")
	})
}

func TestAHerdThatIsNeverServedGoesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stubbedProxy{answer: func(int) result {
			return result{status: http.StatusTooManyRequests, retryAfter: 7 * time.Second}
		}}
		c := clientsAt(s)
		defer c.close()
		e := &errand{name: "herd", clients: 2}
		require.NoError(t, c.herd(e))
		time.Sleep(herdTime)
		synctest.Wait()
		_, ended := e.report()
		require.True(t, ended)
		require.Len(t, s.at(), 9, "at 0 s, 7 s, ... 56 s")
	})
}

func TestClientsWithoutPatienceGoAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stubbedProxy{takes: time.Second}
		c := clientsAt(s)
		defer c.close()
		e := &errand{clients: 10}
		require.NoError(t, c.burst(e, 0, func(i int) time.Duration { return time.Duration(i%2) * 300 * time.Millisecond }))
		time.Sleep(300 * time.Millisecond)
		synctest.Wait()
		got, ended := e.report()
		require.False(t, ended)
		require.Equal(t, tally{sent: 5, disconnected: 5}, got)
		time.Sleep(700 * time.Millisecond)
		synctest.Wait()
		got, ended = e.report()
		require.True(t, ended)
		require.Equal(t, tally{sent: 10, served: 5, disconnected: 5}, got)
	})
}

func TestMoreClientsThanFitAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stubbedProxy{takes: time.Second}
		c := clientsAt(s)
		defer c.close()
		require.NoError(t, c.burst(&errand{clients: maxBurst - 1}, 0, nil))
		require.ErrorIs(t, c.burst(&errand{clients: 2}, 0, nil), errTooManyClients)
		require.ErrorIs(t, c.herd(&errand{clients: 2}), errTooManyClients)
		require.NoError(t, c.burst(&errand{clients: 1}, 0, nil))
		time.Sleep(time.Second)
		synctest.Wait()
		require.NoError(t, c.burst(&errand{clients: maxBurst}, 0, nil), "all have gone")
	})
}

func TestStopSendsAllAwayAndOthersMayCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stubbedProxy{takes: time.Minute}
		c := clientsAt(s)
		defer c.close()
		e := &errand{clients: 10}
		require.NoError(t, c.burst(e, time.Second, nil))
		time.Sleep(600 * time.Millisecond) // The last come after 800 ms and after 1 s.
		c.stop()
		synctest.Wait()
		got, ended := e.report()
		require.True(t, ended)
		require.Equal(t, tally{sent: 7, disconnected: 7}, got)
		later := &errand{clients: 1}
		require.NoError(t, c.burst(later, 0, nil))
		time.Sleep(time.Minute)
		synctest.Wait()
		got, _ = later.report()
		require.Equal(t, tally{sent: 1, served: 1}, got)
	})
}

// Ctrl-C in the middle of a herd: those in the line are served, and none comes back.
func TestAtTheEndNoClientComesAndNoneIsSentAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stubbedProxy{takes: 500 * time.Millisecond, answer: func(n int) result {
			if n > 50 {
				return result{status: http.StatusTooManyRequests, retryAfter: time.Second}
			}
			return result{status: http.StatusOK}
		}}
		c := clientsAt(s)
		defer c.close()
		e := &errand{clients: 80}
		require.NoError(t, c.herd(e))
		time.Sleep(100 * time.Millisecond)
		c.end()
		require.ErrorIs(t, c.burst(&errand{clients: 1}, 0, nil), errStopping)
		time.Sleep(400 * time.Millisecond)
		synctest.Wait()
		got, ended := e.report()
		require.True(t, ended)
		require.Equal(t, tally{sent: 80, served: 50, refused: 30}, got)
	})
}

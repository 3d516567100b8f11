package clients

import (
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// One refusal holds all requests, and the second attempt keeps its place in the order.
func TestRetryingWaitsInTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		a.answers["/1"] = []int{429}
		client := Retrying(newShaper(t, 5), a)
		var all sync.WaitGroup
		for _, address := range paths(3) {
			all.Go(func() {
				answer, err := client.Get(address)
				if err != nil {
					a.note(err.Error())
					return
				}
				_ = answer.Body.Close()
			})
			synctest.Wait()
		}
		all.Wait()
		require.Equal(t, []string{"0s /0", "1s /1", "31s /2", "32s /1"}, a.log)
	})
}

// If nothing is held, the client waits as go-retryablehttp does by default.
func TestRetryingKeepsItsOwnBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		a.answers["/0"] = []int{500, 500, 500}
		answer, err := Retrying(newShaper(t, 5), a).Get(paths(1)[0])
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		require.Equal(t, []string{"0s /0", "1s /0", "3s /0", "7s /0"}, a.log)
	})
}

// A full line is reported to the caller at once.
func TestRetryingDoesNotRetryOurOwnRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShaper(t, 0)
		release, err := s.Acquire(background, 1)
		require.NoError(t, err)
		release()
		a := newAPI()
		_, err = Retrying(s, a).Get(paths(1)[0])
		require.ErrorIs(t, err, shaper.ErrQueueFull)
		require.Equal(t, uint64(1), s.Stats().Refused)
		require.Empty(t, a.log)
	})
}

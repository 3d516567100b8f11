package shaper_test

import (
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// A line that could not be held, because the Limits of its key could not be had at that
// moment, must not let a retry go at once to an API that has asked for a pause.
func TestARetryPausesThoughTheLineOfItsKeyCouldNotBeHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		fails := false
		g, err := shaper.NewGroup(func(string) (shaper.Limits, error) {
			if fails {
				fails = false
				return shaper.Limits{}, errors.New("no answer")
			}
			return shaper.Limits{Rate: 1, Depth: 5}, nil
		})
		require.NoError(t, err)
		defer g.Close()
		var sent []time.Duration
		api := roundTripFunc(func(r *http.Request) (*http.Response, error) {
			sent = append(sent, time.Since(start))
			response := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: r}
			if len(sent) == 1 {
				time.Sleep(3 * time.Second) // The bucket is drained and deleted meanwhile.
				fails = true
				response.StatusCode = http.StatusTooManyRequests
				response.Header.Set("Retry-After", "30")
			}
			return response, nil
		})
		client := http.Client{Transport: &shaper.Transport{Limiter: g.Limiter("a"), Base: api, Retry: true}}
		response, err := client.Get("http://api.example/")
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, response.StatusCode)
		require.Equal(t, []time.Duration{0, 33 * time.Second}, sent)
	})
}

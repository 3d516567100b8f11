package clients

import (
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// Far more addresses than the line has room for are fetched, at the rate and one at a
// time, and no request is refused by the shaper.
func TestFetchAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newAPI(), newShaper(t, 3)
		a.answers["/1"] = []int{429}
		client := &http.Client{Transport: &shaper.Transport{Limiter: s, Base: a, Retry: true}}
		contents, err := FetchAll(background, client, s.Limits().Depth, paths(6))
		require.NoError(t, err)
		require.Equal(t, []string{"content of /0", "content of /1", "content of /2",
			"content of /3", "content of /4", "content of /5"}, contents)
		require.Len(t, a.log, 7) // One was refused, and sent again when the hold was over.
		require.Zero(t, s.Stats().Refused)
		require.Zero(t, s.Stats().InFlight)
	})
}

// The first failure takes all other requests out of the line.
func TestFetchAllEndsWithTheFirstError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newAPI(), newShaper(t, 3)
		for _, path := range []string{"/0", "/1", "/2", "/3", "/4", "/5"} {
			a.answers[path] = []int{404}
		}
		client := &http.Client{Transport: &shaper.Transport{Limiter: s, Base: a}}
		_, err := FetchAll(background, client, s.Limits().Depth, paths(6))
		require.ErrorContains(t, err, "Not Found")
		require.Len(t, a.log, 1)
		require.Zero(t, s.Stats().Waiting)
		require.Zero(t, s.Stats().InFlight)
	})
}

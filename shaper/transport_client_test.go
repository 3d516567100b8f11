package shaper_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// The tests of this file ask what callers of an http.Client and users of older
// parts of net/http see of a Transport.

// Programs tell a timeout by url.Error's Timeout, os.IsTimeout or net.Error, for
// example to decide whether to try again. That the Shaper foresees the timeout of
// the client and does not wait for it must not change the answer.
func TestAForeseenClientTimeoutIsATimeout(t *testing.T) {
	playTransport(t, "1/h depth 2", func(u *upstream) {
		client := &http.Client{Transport: u, Timeout: time.Minute}
		refused := func(wantTimeout bool, want error) {
			u.t.Helper()
			_, err := client.Get("http://upstream/a")
			require.ErrorIs(u.t, err, want)
			require.Equal(u.t, wantTimeout, errors.Is(err, context.DeadlineExceeded))
			require.Equal(u.t, wantTimeout, os.IsTimeout(err))
			netError, ok := errors.AsType[net.Error](err)
			require.True(u.t, ok)
			require.Equal(u.t, wantTimeout, netError.Timeout())
			refusal, ok := errors.AsType[*shaper.RejectError](err)
			require.True(u.t, ok)
			require.Equal(u.t, wantTimeout, refusal.Timeout())
		}
		u.arrive("a", 1)
		refused(true, shaper.ErrTooLate)
		u.set("1/h depth 2 wait 1s") // MaxWait is the limit's, not the client's.
		client.Timeout = 0
		refused(false, shaper.ErrTooLate)
		u.set("1/h")
		client.Timeout = time.Minute
		refused(false, shaper.ErrQueueFull)
		require.Equal(u.t, time.Duration(0), time.Since(u.start), "nobody has waited")
	})
	require.False(t, (&shaper.RejectError{Reason: shaper.ErrTooLate}).Timeout())
}

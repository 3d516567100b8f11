package shaper_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"
)

// trickle is a body of which a byte comes every 2 s, and which can be closed while
// it is read.
type trickle struct {
	rest   int
	closed chan struct{}
}

func newTrickle(length int) *trickle { return &trickle{length, make(chan struct{})} }

func (b *trickle) Read(p []byte) (int, error) {
	if b.rest == 0 {
		return 0, io.EOF
	}
	select {
	case <-time.After(2 * time.Second):
		b.rest--
		p[0] = 'x'
		return 1, nil
	case <-b.closed:
		return 0, io.EOF // As if that had been all.
	}
}

// Close panics the second time, because a body must be closed only once.
func (b *trickle) Close() error {
	close(b.closed)
	return nil
}

// A refusal whose body does not end is cut off after 5 s. Then its request is sent again,
// and its seat is free.
func TestASlowRefusalIsCutOff(t *testing.T) {
	for _, tt := range []struct {
		length int
		hold   string
		want   []string
	}{
		{2, "30", []string{"0s a sent", "30s a sent", "30s a 200: body"}},
		{2, "3", []string{"0s a sent", "4s a sent", "4s a 200: body"}},
		{1000, "30", []string{"0s a sent", "30s a sent", "30s a 200: body"}},
		{1000, "3", []string{"0s a sent", "5s a sent", "5s a 200: body"}},
	} {
		for _, l := range []string{"shaper", "of x/time"} {
			t.Run(fmt.Sprintln(tt.length, tt.hold, l), func(t *testing.T) {
				playTransport(t, "1/s depth 3 inflight 1", func(u *upstream) {
					u.Retry = true
					if l != "shaper" {
						u.Limiter = rate.NewLimiter(1, 1)
					}
					first := newTrickle(tt.length)
					u.refuseOnce(first, tt.hold)
					u.call("a")
					u.at(time.Minute)
					u.saw(tt.want...)
					require.Equal(t, 0, u.Stats().InFlight)
					<-first.closed
				})
			})
		}
	}
}

// refuseOnce makes a Base whose first answer is a 429 with that body.
func (u *upstream) refuseOnce(body io.ReadCloser, retryAfter string) {
	times := 0
	u.Base = roundTripFunc(func(r *http.Request) (*http.Response, error) {
		answer, err := u.answer(r)
		if times++; times == 1 {
			answer.StatusCode, answer.Body = 429, body
			answer.Header.Set("Retry-After", retryAfter)
		}
		return answer, err
	})
}

// What has come of a refusal that was cut off can be read, and then reading it fails.
func TestARefusalThatWasCutOffSaysSo(t *testing.T) {
	playTransport(t, "1/s depth 3 inflight 1", func(u *upstream) {
		u.Retry = true
		u.refuseOnce(newTrickle(1000), "30")
		time.AfterFunc(10500*time.Millisecond, func() { _ = u.Close() })
		answer, err := u.RoundTrip(u.request(context.Background(), "a", nil))
		require.NoError(t, err)
		require.Equal(t, 10500*time.Millisecond, time.Since(u.start))
		require.Equal(t, 429, answer.StatusCode)
		content, err := io.ReadAll(answer.Body)
		require.Equal(t, "xx", string(content))
		require.EqualError(t, err, "shaper: the refusal was cut off, as its body took longer than 5s to come")
	})
}

// If the request has no time to be sent again, its refusal is not cut off.
func TestASlowRefusalIsReturnedWholeIfTheTimeWouldNotSuffice(t *testing.T) {
	playTransport(t, "1/s depth 3 inflight 1", func(u *upstream) {
		u.Retry = true
		u.refuseOnce(newTrickle(20), "30")
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		answer, err := u.RoundTrip(u.request(ctx, "a", nil))
		require.NoError(t, err)
		require.Equal(t, u.start, time.Now())
		require.Equal(t, "429, retry 30: "+strings.Repeat("x", 20), inWords(answer))
	})
}

package shaper_test

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// bursting is a body whose methods panic, or do nothing.
type bursting struct {
	reads, closes bool
	slow          time.Duration // of Read
	closed        *int
}

func (b bursting) Read([]byte) (int, error) {
	time.Sleep(b.slow)
	if b.reads {
		panic("burst")
	}
	return 0, io.EOF
}

func (b bursting) Close() error {
	*b.closed++
	if b.closes {
		panic("burst")
	}
	return nil
}

// Before a request is sent again, foreign code runs. If that code panics, the request is
// no longer in flight, both bodies are closed, and the caller can recover.
func TestAPanicBeforeTheRetryLeavesNothingBehind(t *testing.T) {
	for _, tt := range []struct {
		name    string
		refusal bursting
		getBody func() // before the body is handed out
		line    func(u *upstream)
		// How often the body of the refusal is closed, and the second one.
		first, second int
	}{
		{"GetBody", bursting{}, func() { panic("burst") }, nil, 1, 0},
		{"Read of the refusal", bursting{reads: true}, nil, nil, 1, 1},
		{"Close of the refusal", bursting{closes: true}, nil, nil, 2, 1},
		{"Close of the refusal when it is cut off", bursting{closes: true, slow: time.Minute}, nil, nil, 2, 1},
		{"Read of the refusal when it was cut off", bursting{reads: true, slow: time.Minute}, nil, nil, 2, 1},
		{"the Limiter", bursting{}, nil, func(u *upstream) { u.Limiter = &burstingLimiter{Shaper: u.Shaper} }, 1, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			playTransport(t, "1/s depth 3 inflight 1", func(u *upstream) {
				u.Retry = true
				if tt.line != nil {
					tt.line(u)
				}
				closed := 0
				tt.refusal.closed = &closed
				u.refuseOnce(tt.refusal, "30")
				second := &sentBody{Reader: strings.NewReader("x")}
				r := u.request(context.Background(), "a", strings.NewReader("x"))
				r.GetBody = func() (io.ReadCloser, error) {
					if tt.getBody != nil {
						tt.getBody()
					}
					return second, nil
				}
				require.PanicsWithValue(t, "burst", func() { _, _ = u.RoundTrip(r) })
				require.Equal(t, 0, u.Stats().InFlight)
				require.Equal(t, tt.second, second.closed)
				u.at(2 * time.Minute)
				require.Equal(t, tt.first, closed)
			})
		})
	}
}

// burstingLimiter panics when it is asked the second time.
type burstingLimiter struct {
	*shaper.Shaper
	asked int
}

func (l *burstingLimiter) Acquire(ctx context.Context, n int) (func(), error) {
	if l.asked++; l.asked > 1 {
		panic("burst")
	}
	return l.Shaper.Acquire(ctx, n)
}

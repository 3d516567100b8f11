package shaper_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"
)

const refusedFor30 = "429 Too Many Requests\nRetry-After: 30"

// A request that was refused is sent once more when the hold is over, ahead of all
// newcomers and of the line as it was.
func TestRetryEntersAtTheHead(t *testing.T) {
	playTransport(t, "1/s depth 3", func(u *upstream) {
		u.Retry = true
		u.script["b"] = []string{refusedFor30}
		u.call("a", "b", "c", "d", "e") // The line is full: its bound is for newcomers.
		u.at(time.Minute)
		u.saw("0s a sent", "0s a 200: body", "0s e full, retry 1s", "1s b sent",
			"31s b sent", "31s b 200: body", "32s c sent", "32s c 200: body", "33s d sent", "33s d 200: body")
	})
}

// Requests that were refused keep the order of their refusals. If one of them gives up in
// the line, the others are not affected.
func TestRefusedRequestsKeepTheirOrder(t *testing.T) {
	playTransport(t, "1/s depth 9", func(u *upstream) {
		u.Retry = true
		u.took = 5 * time.Second
		for _, name := range []string{"a", "b", "c", "d"} {
			u.script[name] = []string{refusedFor30}
		}
		u.call("a", "b", "c", "d", "e", "f", "g")
		u.at(5 * time.Second)
		u.saw("0s a sent", "1s b sent", "2s c sent", "3s d sent", "4s e sent", "5s f sent")
		u.at(20 * time.Second)
		u.cancel("d")
		u.at(21 * time.Second)
		u.cancel("b")
		u.at(time.Minute)
		u.saw("9s e 200: body", "10s f 200: body", "20s d cancelled", "21s b cancelled",
			"38s a sent", "39s c sent", "40s g sent", "43s a 200: body", "44s c 200: body", "45s g 200: body")
	})
}

// The second answer is the last, whatever it says, and holds the line as the first did.
func TestRetryIsOnce(t *testing.T) {
	for _, second := range []string{refusedFor30, "503 -\nRetry-After: 30", "200 OK\nRateLimit: \"a\";r=0;t=30"} {
		t.Run(second, func(t *testing.T) {
			playTransport(t, "1/s depth 3", func(u *upstream) {
				u.Retry, u.HoldWhenExhausted = true, true
				u.script["a"] = []string{refusedFor30, second}
				answer, err := u.RoundTrip(u.request(context.Background(), "a", nil))
				require.NoError(t, err)
				require.Equal(t, second[:3], fmt.Sprint(answer.StatusCode))
				require.Equal(t, u.start.Add(time.Minute), u.Stats().HeldUntil)
				u.saw("0s a sent", "30s a sent")
			})
		})
	}
	playTransport(t, "1/s depth 3", func(u *upstream) {
		u.Retry = true
		u.script["a"] = []string{refusedFor30, "error"}
		_, err := u.RoundTrip(u.request(context.Background(), "a", nil))
		require.Equal(t, errUpstream, err)
	})
}

// A request is sent again only after a refusal, which says that it was not processed.
func TestOnlyARefusalIsSentAgain(t *testing.T) {
	for answer, want := range map[string]string{
		"429 -":                             "1s a sent", // Paced by the rate alone.
		refusedFor30:                        "30s a sent",
		"503 -\nRetry-After: 30":            "30s a sent",
		"503 -\nRateLimit: \"a\";r=0;t=30":  "30s a sent",
		"503 -":                             "",
		"503 -\nRetry-After: soon":          "",
		"200 OK\nRateLimit: \"a\";r=0;t=30": "",
		"500 -\nRetry-After: 30":            "",
		"429 -\nRetry-After: 3600":          "1m0s a sent", // MaxHold
		"429 -\nRetry-After: Sat, 01 Jan 2000 00:00 GMT": "1s a sent",
		"error": "",
	} {
		t.Run(answer, func(t *testing.T) {
			playTransport(t, "1/s depth 3", func(u *upstream) {
				u.Retry, u.HoldWhenExhausted = true, true
				u.script["a"] = []string{answer}
				_, _ = u.RoundTrip(u.request(context.Background(), "a", nil))
				if want == "" {
					u.saw("0s a sent")
				} else {
					u.saw("0s a sent", want)
				}
			})
		})
	}
}

// Without Retry a refusal is the caller's to see.
func TestWithoutRetryNothingIsSentTwice(t *testing.T) {
	playTransport(t, "1/s depth 3", func(u *upstream) {
		u.script["a"] = []string{refusedFor30}
		u.call("a")
		u.at(time.Minute)
		u.saw("0s a sent", "0s a 429, retry 30: body")
	})
}

// A body is sent again if GetBody returns a second one, and each is closed.
func TestRetrySendsTheBodyAgain(t *testing.T) {
	tests := []struct {
		name    string
		body    io.Reader // nil, NoBody, or what a GetBody is made for
		getBody func() (io.ReadCloser, error)
		want    []string
	}{
		{"none", nil, nil, []string{"0s a sent", "30s a sent"}},
		{"NoBody", http.NoBody, nil, []string{"0s a sent with ", "30s a sent with "}},
		{"of a string", strings.NewReader("x"), nil, []string{"0s a sent with x", "30s a sent with x"}},
		{"without GetBody", io.LimitReader(strings.NewReader("x"), 1), nil, []string{"0s a sent with x"}},
		{"with a GetBody that fails", io.LimitReader(strings.NewReader("x"), 1),
			func() (io.ReadCloser, error) { return nil, errUpstream }, []string{"0s a sent with x"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			playTransport(t, "1/s depth 3", func(u *upstream) {
				u.Retry = true
				u.script["a"] = []string{refusedFor30}
				r := u.request(context.Background(), "a", tt.body)
				if tt.getBody != nil {
					r.GetBody = tt.getBody
				}
				answer, err := u.RoundTrip(r)
				require.NoError(t, err)
				if len(tt.want) == 1 {
					require.Equal(t, "429, retry 30: body", inWords(answer))
				} else {
					require.Equal(t, "200: body", inWords(answer))
				}
				u.saw(tt.want...)
			})
		})
	}
}

// A request that waits for its retry is not in flight: with a cap of 1 no request could
// ever leave otherwise.
func TestRetryGivesTheSeatBackFirst(t *testing.T) {
	playTransport(t, "1/s depth 5 inflight 1", func(u *upstream) {
		u.Retry = true
		u.script["a"] = []string{refusedFor30}
		u.fetch("a")
		require.Equal(t, 0, u.Stats().InFlight)
		require.Equal(t, 1, u.Stats().Waiting)
		u.fetch("b")
		u.at(time.Minute)
		u.saw("0s a sent", "30s a sent", "30s a 200")
		closes(u.body("a"))
		u.saw("1m0s b sent", "1m0s b 200")
		closes(u.body("b"))
		require.Equal(t, 0, u.Stats().InFlight)
	})
}

// If the Limiter has no Hold, only this request waits for the time that the refusal asks
// for, and then for the limiter as any other.
func TestRetryWithALimiterThatCanNotHold(t *testing.T) {
	playTransport(t, "1/s depth 5", func(u *upstream) {
		u.Retry = true
		u.Limiter = rate.NewLimiter(rate.Every(20*time.Second), 1)
		u.script["a"] = []string{refusedFor30}
		u.call("a", "b", "c")
		u.at(time.Hour)
		u.saw("0s a sent", "20s b sent", "20s b 200: body", "40s c sent", "40s c 200: body",
			"1m0s a sent", "1m0s a 200: body")
	})
}

// A request of cost 0 does not wait in line, so its retry would be sent at once.
func TestARequestOfNoCostIsNotSentAgain(t *testing.T) {
	playTransport(t, "1/s depth 5", func(u *upstream) {
		u.Retry = true
		u.Cost = func(*http.Request) int { return 0 }
		u.script["a"] = []string{refusedFor30}
		u.call("a")
		u.at(time.Minute)
		u.saw("0s a sent", "0s a 429, retry 30: body")
	})
}

// During a Shutdown a request that has left enters the line again only while the line
// still leaves.
func TestRetryDuringAShutdown(t *testing.T) {
	playTransport(t, "1/s depth 5", func(u *upstream) {
		u.Retry = true
		u.took = 500 * time.Millisecond
		u.script["a"] = []string{refusedFor30}
		u.script["c"] = []string{refusedFor30}
		u.call("a", "b", "c")
		go func() { u.note("shut down " + outcome(u.Shutdown(context.Background()))) }()
		synctest.Wait()
		u.at(2 * time.Minute)
		u.saw("0s a sent", "30.5s a sent", "31s a 200: body", "31.5s b sent", "32s b 200: body", "32.5s c sent",
			"32.5s shut down left", "33s c 429, retry 30: body")
	})
}

package shaper_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// With a cap a request keeps its seat until its answer has ended, whatever the rate would
// allow.
func TestASeatIsFreeWhenTheBodyHasEnded(t *testing.T) {
	playTransport(t, "inf depth 9 inflight 1", func(u *upstream) {
		u.fetch("a", "b", "c", "d")
		u.at(time.Second)
		u.saw("0s a sent", "0s a 200")

		body := u.body("a")
		_, err := io.ReadFull(body, make([]byte, 4)) // This is the whole body, but its end has not been read.
		require.NoError(t, err)
		u.at(2 * time.Second)
		u.saw()
		_, err = body.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
		u.saw("2s b sent", "2s b 200")
		require.NoError(t, body.Close()) // The seat is b's by now.
		_, err = body.Read(make([]byte, 1))
		require.Error(t, err)
		u.saw()
		require.Equal(t, 1, u.Stats().InFlight)

		u.at(3 * time.Second)
		require.NoError(t, u.body("b").Close()) // Unread.
		require.NoError(t, u.body("b").Close())
		u.saw("3s c sent", "3s c 200")
		require.Equal(t, 1, u.Stats().InFlight)

		closes(u.body("c"))
		u.saw("3s d sent", "3s d 200")
		closes(u.body("d"))
		require.Equal(t, 0, u.Stats().InFlight)
	})
}

// bodyEnds are what a Base may answer, what the caller does with that, and whether the
// seat is free before and after.
var bodyEnds = []struct {
	name   string
	method string
	base   func() (*http.Response, error)
	kept   bool
	then   func(body io.ReadCloser)
}{
	{"no answer", "GET", func() (*http.Response, error) { return nil, errUpstream }, false, nil},
	{"no body", "GET", func() (*http.Response, error) { return &http.Response{StatusCode: 200}, nil }, false, nil},
	{"NoBody", "GET", func() (*http.Response, error) { return &http.Response{StatusCode: 200, Body: http.NoBody}, nil }, false, nil},
	{"HEAD", "HEAD", func() (*http.Response, error) { return textAnswer(200), nil }, false, nil},
	{"204", "GET", func() (*http.Response, error) { return textAnswer(204), nil }, false, nil},
	{"304", "GET", func() (*http.Response, error) { return textAnswer(304), nil }, false, nil},
	{"a length that nobody has set", "GET", func() (*http.Response, error) { return textAnswer(200), nil }, true, closes},
	{"read to its end", "GET", func() (*http.Response, error) { return textAnswer(200), nil }, true, reads},
	{"an error is read to its end", "GET", func() (*http.Response, error) { return textAnswer(500), nil }, true, reads},
	{"reading fails", "GET", func() (*http.Response, error) {
		return &http.Response{StatusCode: 200, Body: io.NopCloser(io.MultiReader(strings.NewReader("x"), errorReader{}))}, nil
	}, true, reads},
	{"closing fails", "GET", func() (*http.Response, error) {
		return &http.Response{StatusCode: 200, Body: errorReader{}}, nil
	}, true, closes},
	{"closing panics", "GET", func() (*http.Response, error) {
		return &http.Response{StatusCode: 200, Body: panicCloser{}}, nil
	}, true, func(body io.ReadCloser) {
		defer func() { _ = recover() }()
		closes(body)
	}},
	{"closed from all sides", "GET", func() (*http.Response, error) { return textAnswer(200), nil }, true, func(body io.ReadCloser) {
		done := make(chan struct{})
		for range 4 {
			go func() { closes(body); done <- struct{}{} }()
		}
		for range 4 {
			<-done
		}
	}},
}

func textAnswer(status int) *http.Response {
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader("body"))}
}

type errorReader struct{}

func (errorReader) Read([]byte) (int, error) { return 0, errUpstream }
func (errorReader) Close() error             { return errUpstream }

type panicCloser struct{ errorReader }

func (panicCloser) Close() error { panic("closing") }

func closes(body io.ReadCloser) { _ = body.Close() }
func reads(body io.ReadCloser)  { _, _ = io.Copy(io.Discard, body) }

func TestASeatIsGivenBackOnceHoweverTheAnswerEnds(t *testing.T) {
	for _, tt := range bodyEnds {
		t.Run(tt.name, func(t *testing.T) {
			playTransport(t, "inf inflight 2", func(u *upstream) {
				u.Base = roundTripFunc(func(*http.Request) (*http.Response, error) { return tt.base() })
				other, err := u.Acquire(context.Background(), 1) // It would lose its seat if one were given back twice.
				require.NoError(t, err)
				r, err := http.NewRequest(tt.method, "http://upstream/", nil)
				require.NoError(t, err)
				answer, err := u.RoundTrip(r)
				if !tt.kept {
					require.Equal(t, 1, u.Stats().InFlight)
				} else {
					require.NoError(t, err)
					require.Equal(t, 2, u.Stats().InFlight)
					tt.then(answer.Body)
					require.Equal(t, 1, u.Stats().InFlight)
				}
				if answer != nil && answer.Body != nil && tt.name != "closing panics" {
					reads(answer.Body)
					closes(answer.Body)
				}
				require.Equal(t, 1, u.Stats().InFlight)
				other()
			})
		})
	}
}

// The request ends with Close, so the seat is free only when Close has returned.
func TestASeatIsKeptWhileTheBodyIsBeingClosed(t *testing.T) {
	playTransport(t, "inf inflight 1", func(u *upstream) {
		u.Base = roundTripFunc(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Body: slowCloser{}}, nil
		})
		answer, err := u.RoundTrip(u.request(context.Background(), "a", nil))
		require.NoError(t, err)
		go closes(answer.Body)
		u.at(time.Second - 1)
		require.Equal(t, 1, u.Stats().InFlight)
		u.at(time.Second)
		require.Equal(t, 0, u.Stats().InFlight)
	})
}

type slowCloser struct{ errorReader }

func (slowCloser) Close() error { time.Sleep(time.Second); return nil }

// A panic of Base gives the seat back.
func TestASeatIsGivenBackIfBasePanics(t *testing.T) {
	playTransport(t, "inf inflight 1", func(u *upstream) {
		u.Base = roundTripFunc(func(*http.Request) (*http.Response, error) { panic("base") })
		require.PanicsWithValue(t, "base", func() { _, _ = u.RoundTrip(u.request(context.Background(), "a", nil)) })
		require.Equal(t, 0, u.Stats().InFlight)
	})
}

// Without a seat to give back, the body of an answer is as the Base made it.
func TestWithoutACapTheBodyIsLeftAlone(t *testing.T) {
	playTransport(t, "inf", func(u *upstream) {
		answer := &http.Response{StatusCode: 200, Body: panicCloser{}}
		u.Base = roundTripFunc(func(*http.Request) (*http.Response, error) { return answer, nil })
		_, err := u.RoundTrip(u.request(context.Background(), "a", nil))
		require.NoError(t, err)
		require.Equal(t, panicCloser{}, answer.Body)
	})
}

// When a request is refused and asked to hold back, its seat becomes free only after the
// line is held, even if the refusal has no body.
func TestTheHoldComesBeforeTheSeatIsFree(t *testing.T) {
	playTransport(t, "inf depth 5 inflight 1", func(u *upstream) {
		u.took = time.Second
		u.script["a"] = []string{"429 -\nRetry-After: 30\nContent-Length: 0"}
		u.call("a", "b")
		u.at(time.Minute)
		u.saw("0s a sent", "1s a 429, retry 30: ", "31s b sent", "32s b 200: body")
	})
}

// Shutting down does not wait for bodies, and closing them afterwards is fine.
func TestABodyMayOutliveItsShaper(t *testing.T) {
	playTransport(t, "inf depth 5 inflight 1", func(u *upstream) {
		u.fetch("a")
		u.call("b")
		u.at(time.Second)
		_ = u.Close()
		synctest.Wait()
		reads(u.body("a"))
		u.saw("0s a sent", "0s a 200", "1s b closed, retry 0s")
		require.Equal(t, 0, u.Stats().InFlight)
	})
}

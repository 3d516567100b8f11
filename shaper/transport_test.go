package shaper_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

var _, _ http.RoundTripper = shaper.Transport{}, &shaper.Transport{}

// A request is sent as soon as the limiter admits it, and not before.
func TestTransportSendsAtTheRate(t *testing.T) {
	playTransport(t, "1/s depth 5", func(u *upstream) {
		u.call("a", "b", "c")
		u.at(10 * time.Second)
		u.saw("0s a sent", "0s a 200: body", "1s b sent", "1s b 200: body", "2s c sent", "2s c 200: body")
	})
}

// The cost is 1, or what Cost returns. For a cost of 0 the limiter is not asked.
func TestTransportAsksForTheCost(t *testing.T) {
	playTransport(t, "1/s depth 5", func(u *upstream) {
		u.call("a")
		u.Cost = costInQuery
		for _, path := range []string{"b?cost=3", "c", "free?cost=0", "wrong?cost=-1"} {
			u.callWith(u.request(context.Background(), path, nil), true)
		}
		u.at(time.Hour)
		u.saw("0s a sent", "0s a 200: body", "0s free sent", "0s free 200: body",
			"0s wrong shaper: cost is negative",
			"1s b sent", "1s b 200: body", "4s c sent", "4s c 200: body")
		require.Equal(t, uint64(3), u.Stats().Departed)
		u.Limiter = failing(errUpstream)
		u.callWith(u.request(context.Background(), "free?cost=0", nil), true)
		u.saw("1h0m0s free sent", "1h0m0s free 200: body")
	})
}

// Whatever keeps a request from being sent closes its body, as the contract of
// http.RoundTripper demands, and says why.
func TestTransportClosesTheBodyOfWhatIsNotSent(t *testing.T) {
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	tests := []struct {
		name   string
		change func(u *upstream)
		ctx    context.Context
		want   error
	}{
		{"no limiter", func(u *upstream) { u.Limiter = nil }, nil, errors.New("shaper: Transport.Limiter is nil; to send every request at once, use Base")},
		{"negative hold", func(u *upstream) { u.MaxHold = -time.Second }, nil, errors.New("shaper: Transport.MaxHold is -1s, must not be negative")},
		{"negative cost", func(u *upstream) { u.Cost = func(*http.Request) int { return -1 } }, nil, shaper.ErrNegativeCost},
		{"negative cost for another limiter", func(u *upstream) {
			u.Limiter, u.Cost = failing(nil), func(*http.Request) int { return -1 }
		}, nil, shaper.ErrNegativeCost},
		{"full", func(u *upstream) { u.arriveAll("a", "b") }, nil, shaper.ErrQueueFull},
		{"late", func(u *upstream) { u.set("1/h depth 1 wait 1s"); u.arriveAll("a") }, nil, shaper.ErrTooLate},
		{"costly", func(u *upstream) { u.Cost = func(*http.Request) int { return 1e9 } }, nil, shaper.ErrTooCostly},
		{"closed", func(u *upstream) { _ = u.Close() }, nil, shaper.ErrClosed},
		{"cancelled before", func(u *upstream) {}, cancelled, context.Canceled},
		{"another limiter's error", func(u *upstream) { u.Limiter = failing(errUpstream) }, nil, errUpstream},
		{"cancelled unseen by another limiter", func(u *upstream) { u.Limiter = failing(nil) }, cancelled, context.Canceled},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			playTransport(t, "1/h depth 1", func(u *upstream) {
				u.Base = roundTripFunc(func(*http.Request) (*http.Response, error) { panic("sent") })
				tt.change(u)
				ctx := tt.ctx
				if ctx == nil {
					ctx = context.Background()
				}
				body := &sentBody{Reader: strings.NewReader("x")}
				answer, err := u.RoundTrip(u.request(ctx, "a", body))
				require.Nil(t, answer)
				if !errors.Is(err, tt.want) {
					require.EqualError(t, err, tt.want.Error())
				}
				require.Equal(t, 1, body.closed)

				_, err = u.RoundTrip(u.request(ctx, "a", nil)) // There need not be one.
				require.Error(t, err)
				_ = u.Close()
			})
		})
	}
}

// A RoundTripper must not change the caller's request, except that it reads and closes the
// body.
func TestTransportLeavesTheRequestAsItIs(t *testing.T) {
	playTransport(t, "1/s depth 5", func(u *upstream) {
		u.Retry = true
		u.script["a"] = []string{"429 Too Many Requests", "200 OK"}
		body := &sentBody{Reader: strings.NewReader("x")}
		r := u.request(context.Background(), "a", body)
		r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("x")), nil }
		r.Header.Set("A", "b")
		before, header := *r, r.Header.Clone()
		var sent []*http.Request
		u.Base = roundTripFunc(func(r *http.Request) (*http.Response, error) {
			sent = append(sent, r)
			return u.answer(r)
		})
		answer, err := u.RoundTrip(r)
		require.NoError(t, err)
		require.Equal(t, "200: body", inWords(answer))
		require.Equal(t, 1, body.closed)
		require.Equal(t, header, r.Header)
		before.GetBody, r.GetBody = nil, nil // Functions can't be compared.
		require.Equal(t, before, *r)
		require.Len(t, sent, 2)
		require.Same(t, r, sent[0])
		require.NotSame(t, r, sent[1])
		require.Equal(t, header, sent[1].Header)
	})
}

// A context that ends in the line frees its place for the next at once.
func TestACallThatIsCancelledInTheLineIsNotSent(t *testing.T) {
	playTransport(t, "1/s depth 5", func(u *upstream) {
		u.call("a", "b", "c")
		u.at(500 * time.Millisecond)
		u.cancel("b")
		u.at(10 * time.Second)
		u.saw("0s a sent", "0s a 200: body", "500ms b cancelled", "1s c sent", "1s c 200: body")
	})
}

// A Shutdown lets the requests in line leave, and refuses newcomers. A Close refuses all.
// Answers to requests that have been sent are still returned.
func TestTransportWhenTheShaperEnds(t *testing.T) {
	playTransport(t, "1/s depth 5", func(u *upstream) {
		u.took = 10 * time.Second
		u.call("a", "b", "c")
		go func() { u.note("shut down " + outcome(u.Shutdown(context.Background()))) }()
		synctest.Wait()
		u.call("d")
		u.at(time.Second)
		_ = u.Close()
		u.at(time.Minute)
		u.saw("0s a sent", "0s d closed, retry 2s", "1s b sent", "1s c closed, retry 0s", "1s shut down left",
			"10s a 200: body", "11s b 200: body")
	})
}

// Another Limiter than a Shaper paces as well.
func TestTransportWithTheLimiterOfXTime(t *testing.T) {
	playTransport(t, "1/s depth 5", func(u *upstream) {
		u.Limiter = rate.NewLimiter(rate.Every(2*time.Second), 1)
		u.script["a"] = []string{"429 Too Many Requests\nRetry-After: 50"} // It can't hold.
		u.call("a", "b")
		u.at(time.Minute)
		u.saw("0s a sent", "0s a 429, retry 50: body", "2s b sent", "2s b 200: body")
	})
}

func TestTransportUsesTheDefaultBase(t *testing.T) {
	before := http.DefaultTransport
	defer func() { http.DefaultTransport = before }()
	http.DefaultTransport = roundTripFunc(func(r *http.Request) (*http.Response, error) {
		return answerOfText("418 I'm a teapot", r)
	})
	r := must(http.NewRequest("GET", "http://upstream/", nil))
	answer, err := shaper.Transport{Limiter: failing(nil)}.RoundTrip(r)
	require.NoError(t, err)
	require.Equal(t, "418: body", inWords(answer))
}

// http.Client looks for the method by its name.
func TestTransportClosesIdleConnectionsOfItsBase(t *testing.T) {
	base := &idleBase{}
	(&http.Client{Transport: shaper.Transport{Base: base}}).CloseIdleConnections()
	require.Equal(t, 1, base.closed)
	(&http.Client{Transport: shaper.Transport{Base: roundTripFunc(nil)}}).CloseIdleConnections() // It has none.
}

type idleBase struct {
	http.RoundTripper
	closed int
}

func (b *idleBase) CloseIdleConnections() { b.closed++ }

// What Base returns against its contract is returned unchanged, and keeps no seat.
func TestTransportHandsOnWhatBaseReturns(t *testing.T) {
	playTransport(t, "1/s depth 5 inflight 1", func(u *upstream) {
		both := &http.Response{StatusCode: 429, Body: io.NopCloser(strings.NewReader("")), Header: http.Header{"Retry-After": {"5"}}}
		for _, c := range []struct {
			answer *http.Response
			err    error
		}{{nil, nil}, {both, errUpstream}, {nil, errUpstream}} {
			u.Base = roundTripFunc(func(*http.Request) (*http.Response, error) { return c.answer, c.err })
			answer, err := u.RoundTrip(u.request(context.Background(), "a", nil))
			require.Same(t, c.answer, answer)
			require.Equal(t, c.err, err)
			require.Equal(t, 0, u.Stats().InFlight)
			require.Zero(t, u.Stats().HeldUntil)
		}
	})
}

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

// trickle is a body that gives a byte every 2 s, and can be closed while it is read.
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

// An upstream is the Base of a Transport on a stage. It notes each request and returns the next
// answer of the script. Calls note their answers.
type upstream struct {
	*stage
	shaper.Transport

	// script has the answers by path, each a status and header fields in the form of
	// HTTP. "error" stands for an error instead of an answer. Without a script the
	// answer is a plain 200.
	script map[string][]string
	took   time.Duration // for each

	bodies map[string]io.ReadCloser // of what was fetched
}

// playTransport runs a timeline with a Transport in front of an upstream.
func playTransport(t *testing.T, limits string, timeline func(u *upstream)) {
	t.Helper()
	play(t, limits, func(g *stage) {
		u := &upstream{stage: g, script: map[string][]string{}, bodies: map[string]io.ReadCloser{}}
		u.Transport = shaper.Transport{Limiter: g.Shaper, Base: roundTripFunc(u.answer)}
		timeline(u)
	})
}

type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// answer is the upstream's RoundTrip.
func (u *upstream) answer(r *http.Request) (*http.Response, error) {
	name := strings.TrimPrefix(r.URL.Path, "/")
	sent := name + " sent"
	if r.Body != nil {
		content, err := io.ReadAll(r.Body)
		if err = errors.Join(err, r.Body.Close()); err != nil {
			return nil, err
		}
		sent += " with " + string(content)
	}
	u.note(sent)
	if u.took > 0 {
		time.Sleep(u.took)
	}
	u.mu.Lock()
	text := "200 OK"
	if script := u.script[name]; len(script) > 0 {
		text, u.script[name] = script[0], script[1:]
	}
	u.mu.Unlock()
	return answerOfText(text, r)
}

var errUpstream = errors.New("the upstream is down")

// answerOfText makes an answer of its status line and header, with a body.
func answerOfText(text string, r *http.Request) (*http.Response, error) {
	if text == "error" {
		return nil, errUpstream
	}
	wire := "HTTP/1.1 " + strings.ReplaceAll(text, "\n", "\r\n") + "\r\n\r\nbody"
	return http.ReadResponse(bufio.NewReader(strings.NewReader(wire)), r)
}

// call sends a request, which cancel can end, and reads the answer.
func (u *upstream) call(names ...string) {
	for _, name := range names {
		ctx, cancel := context.WithCancel(context.Background())
		u.cancels[name] = cancel
		u.callWith(u.request(ctx, name, nil), true)
	}
}

// fetch is call without reading the answer's body.
func (u *upstream) fetch(names ...string) {
	for _, name := range names {
		u.callWith(u.request(context.Background(), name, nil), false)
	}
}

// body returns the body of an answer that was fetched.
func (u *upstream) body(name string) io.ReadCloser {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.bodies[name]
}

func (u *upstream) request(ctx context.Context, name string, body io.Reader) *http.Request {
	r, err := http.NewRequestWithContext(ctx, "POST", "http://upstream/"+name, body)
	require.NoError(u.t, err)
	return r
}

func (u *upstream) callWith(r *http.Request, read bool) {
	name := strings.TrimPrefix(r.URL.Path, "/")
	transport := u.Transport
	go func() {
		answer, err := transport.RoundTrip(r)
		switch {
		case err != nil:
			u.note(name + " " + outcome(err))
		case read:
			u.note(name + " " + inWords(answer))
		default:
			u.mu.Lock()
			u.bodies[name] = answer.Body
			u.mu.Unlock()
			u.note(name + " " + statusLine(answer))
		}
	}()
	synctest.Wait()
}

// A sentBody is a body that knows whether it has been closed.
type sentBody struct {
	io.Reader
	closed int
}

func (b *sentBody) Close() error { b.closed++; return nil }

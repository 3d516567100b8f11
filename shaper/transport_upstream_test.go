package shaper_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// An upstream is the Base of a Transport on a stage. It notes each request and returns
// the next answer of the script. Calls note what they got.
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

// A sentBody is a request's body that knows whether it has been closed.
type sentBody struct {
	io.Reader
	closed int
}

func (b *sentBody) Close() error { b.closed++; return nil }

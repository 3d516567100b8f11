package shaper_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// This file holds what Group.Transport and ByHost promise.

// A host that is written in several ways is one host, or it would have as many rates; and two servers are two.
func TestByHostKnowsAHostByAnySpelling(t *testing.T) {
	for _, tt := range []struct{ url, host, want string }{
		{"http://example.com/a", "", "example.com"},
		{"http://EXAMPLE.com/a", "", "example.com"},
		{"http://example.com:80", "", "example.com"},
		{"https://example.com:443", "", "example.com"},
		{"HTTPS://example.com:443", "", "example.com"},
		{"http://example.com:443", "", "example.com:443"},
		{"https://example.com:80", "", "example.com:80"},
		{"https://example.com:8443", "", "example.com:8443"},
		{"https://example.com.", "", "example.com"},
		{"https://example.com.:443", "", "example.com"},
		{"https://Example.Com.:8443", "", "example.com:8443"},
		{"https://example.com..", "", "example.com."},
		{"http://example.com:", "", "example.com"},
		{"http://192.0.2.1:80", "", "192.0.2.1"},
		{"http://[2001:DB8::1]", "", "[2001:db8::1]"},
		{"http://[2001:DB8::1]:80", "", "[2001:db8::1]"},
		{"http://[2001:db8::1]:443", "", "[2001:db8::1]:443"},
		{"https://[2001:db8::1]:443", "", "[2001:db8::1]"},
		{"ftp://example.com:80", "", "example.com:80"},
		{"//example.com:80", "", "example.com"},
		{"http://example.com", "other.example", "example.com"}, // A client's request goes to the URL's, whatever it says.
		{"/a", "Example.com.:80", "example.com"},
		{"/a", "example.com:443", "example.com:443"},
		{"https:/a", "example.com:443", "example.com"},
		{"/a", "", ""},
		{"/a", strings.Repeat("x", 9000), shaper.Join(strings.Repeat("x", 9000))},
	} {
		u, err := url.Parse(tt.url)
		require.NoError(t, err)
		got, err := shaper.ByHost()(&http.Request{URL: u, Host: tt.host})
		require.NoError(t, err)
		require.Equal(t, tt.want, got, "%s %s", tt.url, tt.host)
	}
	got, err := shaper.ByHost()(&http.Request{Host: "example.com:443", TLS: new(tls.ConnectionState)})
	require.NoError(t, err)
	require.Equal(t, "example.com", got, "a request that has come to a server by TLS")
}

// playHosts runs a timeline with a Transport of a Group, whose keys are the hosts of URLs.
func playHosts(t *testing.T, timeline func(u *upstream, g *shaper.Group[string], send func(name, host string)), opts ...shaper.GroupOption) {
	t.Helper()
	playTransport(t, "inf", func(u *upstream) {
		g, err := shaper.NewGroup(func(key string) (shaper.Limits, error) {
			if key == "unknown" {
				return shaper.Limits{}, errors.New("who is that?")
			}
			return shaper.Limits{Rate: 1, Depth: 9}, nil
		}, opts...)
		require.NoError(t, err)
		defer g.Close()
		u.Limiter = nil
		timeline(u, g, func(name, host string) {
			r := u.request(context.Background(), name, nil)
			r.URL.Host = host
			u.callWith(r, true)
		})
	})
}

// Each host has a line of its own. A refusal of one holds that one, and the request that it refused is sent again ahead
// of that line alone.
func TestEachHostIsPacedHeldAndRetriedAlone(t *testing.T) {
	playHosts(t, func(u *upstream, g *shaper.Group[string], send func(name, host string)) {
		u.Retry = true
		u.Transport = g.Transport(shaper.ByHost(), u.Transport).(shaper.Transport)
		u.script["a1"] = []string{"429 Too Many Requests\nRetry-After: 5"}
		send("a1", "a.example")
		send("a2", "A.example.:80")
		send("b1", "b.example")
		send("b2", "b.example")
		u.at(time.Minute)
		u.saw("0s a1 sent", "0s b1 sent", "0s b1 200: body", "1s b2 sent", "1s b2 200: body",
			"5s a1 sent", "5s a1 200: body", "6s a2 sent", "6s a2 200: body")
	})
}

// A request of no cost is sent at once: there is no line that it would wait in, and none that it could hold.
func TestARequestOfNoCostAsksForNoKey(t *testing.T) {
	playHosts(t, func(u *upstream, g *shaper.Group[string], send func(name, host string)) {
		u.Cost, u.Retry = costInQuery, true
		u.Actual = func(*http.Response) func() int { panic("it is not settled") }
		u.Transport = g.Transport(func(*http.Request) (string, error) { panic("it has no key") }, u.Transport).(shaper.Transport)
		u.script["free"] = []string{"429 Too Many Requests\nRetry-After: 5"}
		u.callWith(u.request(context.Background(), "free?cost=0", nil), true)
		u.at(time.Minute)
		u.saw("0s free sent", "0s free 429, retry 5: body")
		require.Zero(t, g.Stats().Keys)
		_, err := u.RoundTrip(u.request(context.Background(), "a?cost=-1", nil))
		require.Equal(t, shaper.ErrNegativeCost, err)
	})
}

// What can't be used fails each request with a sentence, before anything is sent, and closes its body.
func TestWhatAKeyedTransportCantUseFailsEachRequest(t *testing.T) {
	noKey := errors.New("no key")
	for _, tt := range []struct {
		key  shaper.KeyFunc
		t    func(*shaper.Transport)
		host string
		want string
	}{
		{nil, func(*shaper.Transport) {}, "a", "shaper: Group.Transport needs a function that tells the key of a request"},
		{shaper.ByHost(), func(t *shaper.Transport) { t.Limiter = shaper.Chain() }, "a", "shaper: Group.Transport: Transport.Limiter must be nil: a request waits for the bucket of its key"},
		{shaper.ByHost(), func(t *shaper.Transport) { t.Key = shaper.ByHost() }, "a", "shaper: Group.Transport: Transport.Key must be nil: Group.Transport has the function for the key"},
		{shaper.ByHost(), func(t *shaper.Transport) { t.MaxHold = -1 }, "a", "shaper: Transport.MaxHold is -1ns, must not be negative"},
		{func(*http.Request) (string, error) { return "", noKey }, func(*shaper.Transport) {}, "a", "shaper: key of a request: no key"},
		{shaper.ByHost(), func(*shaper.Transport) {}, "unknown", "who is that?"},
	} {
		playHosts(t, func(u *upstream, g *shaper.Group[string], _ func(name, host string)) {
			tt.t(&u.Transport)
			var rt http.RoundTripper
			if tt.key == nil {
				rt = g.Transport(nil, u.Transport)
			} else {
				rt = g.Transport(tt.key, u.Transport)
			}
			body := &closing{Reader: strings.NewReader("x")}
			r := u.request(context.Background(), "a", body)
			r.URL.Host = tt.host
			_, err := rt.RoundTrip(r)
			require.ErrorContains(t, err, tt.want)
			require.Equal(t, 1, body.closed)
			u.saw()
		})
	}
	playHosts(t, func(u *upstream, g *shaper.Group[string], _ func(name, host string)) {
		_, err := g.Transport(func(*http.Request) (string, error) { return "", noKey }, u.Transport).RoundTrip(u.request(context.Background(), "a", nil))
		require.ErrorIs(t, err, noKey)
		require.Equal(t, "no-key", shaper.Reason(err))
	})
}

// closing is a body that counts how often it is closed.
type closing struct {
	io.Reader
	closed int
}

func (c *closing) Close() error {
	c.closed++
	return nil
}

// A dry run refuses nobody, and says what it would have done.
func TestADryRunOfAKeyedTransportSendsARequestWithoutAKey(t *testing.T) {
	playHosts(t, func(u *upstream, g *shaper.Group[string], _ func(name, host string)) {
		rt := g.Transport(func(*http.Request) (string, error) { return "", errors.New("no key") }, u.Transport)
		ctx := shaper.ContextWithVerdict(context.Background())
		answer, err := rt.RoundTrip(u.request(ctx, "a", nil))
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		v, ok := shaper.VerdictOf(ctx)
		require.True(t, ok)
		require.ErrorContains(t, v.Err, "no key")
	}, shaper.WithDryRun())
}

// The attempt that a Middleware has reserved for does not wait again, by way of a Group as by way of a Shaper.
func TestAKeyedTransportSendsWhatAMiddlewareHasReserved(t *testing.T) {
	playHosts(t, func(u *upstream, g *shaper.Group[string], _ func(name, host string)) {
		byHost := func(*http.Request) (string, error) { return "a", nil }
		client := g.Transport(byHost, u.Transport)
		site := g.Middleware(byHost, shaper.WithReserve())(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			answer, err := client.RoundTrip(u.request(r.Context(), "inner", nil))
			require.NoError(t, err)
			require.NoError(t, answer.Body.Close())
		}))
		site.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
		synctest.Wait()
		u.saw("0s inner sent")
		st, ok := g.StatsOf("a")
		require.True(t, ok)
		require.EqualValues(t, 1, st.Departed)
	})
}

func TestAKeyedTransportClosesIdleConnections(t *testing.T) {
	playHosts(t, func(u *upstream, g *shaper.Group[string], _ func(name, host string)) {
		base := new(idleBase)
		u.Base = base
		(&http.Client{Transport: g.Transport(shaper.ByHost(), u.Transport)}).CloseIdleConnections()
		require.Equal(t, 1, base.closed)
	})
	var none *shaper.Group[string]
	require.Panics(t, func() { none.Transport(shaper.ByHost(), shaper.Transport{}) })
}

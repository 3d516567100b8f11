package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// controlOf returns the control of a proxy that nobody can reach, in front of an upstream
// that does not listen, with clients that s answers. It works in a bubble too.
func controlOf(t *testing.T, limits string, s *stubbedProxy) *control {
	t.Helper()
	l := limitsOf(t, limits)
	shaped, err := shaper.New(l)
	require.NoError(t, err)
	d, err := newDryRuns(l)
	require.NoError(t, err)
	f := &fragileUpstream{size: capacityFor(newLimitsInfo(l), 0)}
	c := newControl(&proxy{shaper: shaped}, d, f, l)
	if s != nil {
		stubbed := clientsAt(s)
		c.clients, c.scene.clients = stubbed, stubbed
	}
	t.Cleanup(func() {
		c.end()
		c.clients.close()
		d.close()
		require.NoError(t, shaped.Close())
	})
	return c
}

// press presses a button: it sends a JSON text to a path below /demo/.
func press(c *control, name, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/demo/"+name, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	c.handler().ServeHTTP(w, r)
	return w
}

// pressed presses a button that works, and returns the state that it answers.
func pressed(t *testing.T, c *control, name, body string) demoState {
	t.Helper()
	w := press(c, name, body)
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	var s demoState
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &s))
	return s
}

func TestAButtonThatCannotBeFollowedNamesTheField(t *testing.T) {
	c := controlOf(t, defaultLimits, nil)
	for _, row := range []struct {
		name, body string
		status     int
		parameter  string
		says       string
	}{
		{"burst", `{}`, 400, "n", "missing"},
		{"burst", `{"n":0}`, 400, "n", "from 1 to 10000"},
		{"burst", `{"n":-3}`, 400, "n", "from 1 to 10000"},
		{"burst", `{"n":10001}`, 400, "n", "from 1 to 10000"},
		{"burst", `{"n":1.5}`, 400, "n", "int"},
		{"burst", `{"n":"many"}`, 400, "n", "int"},
		{"burst", `{"n":1,"m":2}`, 400, "m", "not a field"},
		{"scene", `{"on":true}]`, 400, "", "after the object"},
		{"scene", `{"on":true}}`, 400, "", "after the object"},
		{"scene", `{"on":true} x`, 400, "", "after the object"},
		{"burst", `{"n":1}{"n":1}`, 400, "", "after the object"},
		{"burst", `n=1`, 400, "", "JSON"},
		{"burst", ``, 400, "", "JSON"},
		{"burst", `{"n":1` + strings.Repeat(" ", maxBody), 400, "", "too large"},
		{"herd", `{"n":10001}`, 400, "n", "from 1 to 10000"},
		{"impatient", `{"n":0}`, 400, "n", "from 1 to 10000"},
		{"slow", `{}`, 400, "on", "missing"},
		{"slow", `{"on":"yes"}`, 400, "on", "bool"},
		{"scene", `{}`, 400, "on", "missing"},
		{"steady", `{"on":1}`, 400, "on", "bool"},
		{"rate", `{}`, 400, "rate", "missing"},
		{"rate", `{"rate":0}`, 400, "rate", "from 5 to 200 per second"},
		{"rate", `{"rate":200.1}`, 400, "rate", "from 5 to 200 per second"},
		{"rate", `{"rate":"fast"}`, 400, "rate", "float64"},
		{"candidate", `{}`, 400, "limits", "missing"},
		{"candidate", `{"limits":"50 apples"}`, 400, "limits", "50 apples"},
		{"candidate", `{"limits":"50/s inflight 3"}`, 400, "limits", "InFlight"},
	} {
		w := press(c, row.name, row.body)
		require.Equal(t, row.status, w.Code, "%s %s", row.name, row.body)
		var got struct{ Error problem }
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &got), w.Body)
		require.Equal(t, row.parameter, got.Error.Parameter, "%s %s", row.name, row.body)
		require.Contains(t, got.Error.Message, row.says, "%s %s", row.name, row.body)
	}
	require.Equal(t, defaultLimits, c.proxy.shaper.Limits().String())
	require.Nil(t, c.clients.latestErrand())
}

// A form of another site can be sent without asking the visitor, and a form cannot be
// JSON. (http.CrossOriginProtection stands in front of that.)
func TestAFormPressesNoButton(t *testing.T) {
	c := controlOf(t, defaultLimits, nil)
	r := httptest.NewRequest(http.MethodPost, "/demo/burst", strings.NewReader(`{"n":1}`))
	r.Header.Set("Content-Type", "text/plain")
	w := httptest.NewRecorder()
	c.handler().ServeHTTP(w, r)
	require.Equal(t, http.StatusUnsupportedMediaType, w.Code)

	w = httptest.NewRecorder()
	c.handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/demo/burst", nil))
	require.Equal(t, http.StatusMethodNotAllowed, w.Code)
	require.Nil(t, c.clients.latestErrand())
}

// The page reads the reason from the answer, which must be JSON as all others are.
func TestAForeignPageIsToldInJSONThatItPressesNothing(t *testing.T) {
	c := controlOf(t, defaultLimits, nil)
	r := httptest.NewRequest(http.MethodPost, "/demo/burst", strings.NewReader(`{"n":1}`))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Sec-Fetch-Site", "cross-site")
	w := httptest.NewRecorder()
	protected(c.handler()).ServeHTTP(w, r)
	require.Equal(t, http.StatusForbidden, w.Code)
	var got struct{ Error problem }
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &got), w.Body)
	require.Contains(t, got.Error.Message, "another origin")
	require.Nil(t, c.clients.latestErrand())
}

func TestTheSliderReTimesTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controlOf(t, defaultLimits, &stubbedProxy{})
		s, begin := c.proxy.shaper, time.Now()
		left := make(chan time.Duration, 101)
		for range 101 {
			go func() {
				if s.Wait(t.Context()) == nil {
					left <- time.Since(begin)
				}
			}()
		}
		synctest.Wait()
		require.Equal(t, time.Duration(0), <-left)
		before := pressed(t, c, "watch", `{}`)
		require.Equal(t, 100, before.Waiting)
		require.InDelta(t, 2, before.LastIn, 1e-9)

		after := pressed(t, c, "rate", `{"rate":10}`)
		require.Equal(t, "10/s depth 100", after.Limits)
		require.Equal(t, 10.0, after.Rate)
		require.InDelta(t, 10, after.LastIn, 1e-9)
		line := s.Line(100)
		require.Equal(t, begin.Add(100*time.Millisecond), line[0].Leaves)
		require.Equal(t, begin.Add(10*time.Second), line[99].Leaves)
		for i := range 100 {
			require.Equal(t, time.Duration(i+1)*100*time.Millisecond, <-left)
		}
	})
}

func TestTheSliderStaysWithinValidRates(t *testing.T) {
	for limits, want := range map[string][2]float64{
		defaultLimits:        {5, 200},
		"1000000000/s":       {1e8, 1e9},
		"1 per 365d depth 1": {1. / (365 * 86400), 4. / (365 * 86400)},
	} {
		slowest, fastest := rateRange(limitsOf(t, limits))
		require.InEpsilon(t, want[0], slowest, 1e-9, limits)
		require.InEpsilon(t, want[1], fastest, 1e-9, limits)
	}
}

func TestWhatAVisitorSendsEndsTheScene(t *testing.T) {
	for _, name := range []string{"burst", "herd", "impatient", "stop"} {
		synctest.Test(t, func(t *testing.T) {
			s := &stubbedProxy{}
			c := controlOf(t, defaultLimits, s)
			require.True(t, pressed(t, c, "watch", `{}`).Clients.Scene)
			body := `{"n":20}`
			if name == "stop" {
				body = `{}`
			}
			require.False(t, pressed(t, c, name, body).Clients.Scene, name)
			time.Sleep(time.Minute)
			if name == "stop" {
				require.Zero(t, s.total())
				return
			}
			require.Equal(t, 20, s.total(), name)
			got := pressed(t, c, "watch", `{}`).Errand
			require.Equal(t, &errandState{ID: 1, Name: name, Clients: 20, Ended: true, Sent: 20, Served: 20}, got)
			require.True(t, pressed(t, c, "scene", `{"on":true}`).Clients.Scene)
		})
	}
}

// Beside a server of the user's there are no clients: they would load it.
func TestNoClientsForAServerOfTheUsers(t *testing.T) {
	c := controlOf(t, defaultLimits, nil)
	c.upstream = nil
	require.Nil(t, pressed(t, c, "watch", `{}`).Clients)
	for _, name := range []string{"burst", "herd", "impatient", "slow", "scene", "steady", "stop"} {
		require.Equal(t, http.StatusNotFound, press(c, name, `{}`).Code, name)
	}
	playing, _ := c.scene.state()
	require.False(t, playing)
	require.Equal(t, 20.0, pressed(t, c, "rate", `{"rate":20}`).Rate)
}

package caddyshaper_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/caddyshaper"
	"example.com/leakybucket/internal/realtime"
)

func TestMistakesInOtherDirectivesAreTold(t *testing.T) {
	for _, c := range []struct{ lines, want string }{
		{"shape_inspect {\n tokne x\n}", `shape_inspect has no subdirective "tokne"; there are title, hosts and control, at Caddyfile:3`},
		{"shape_inspect {\n title\n}", `Caddyfile:3`},
		{"shape_inspect {\n title a b\n}", `Caddyfile:3`},
		{"shape_inspect {\n control \"\"\n}", `control: "", must not be empty, at Caddyfile:3`},
		{"shape_inspect {\n title a\n title b\n}", `title: it is said twice, at Caddyfile:4`},
		{"shape_inspect {\n control a\n control b\n}", `control: it is said twice, at Caddyfile:4`},
		{"shape_inspect {\n hosts\n}", `Caddyfile:3`},
		{"shape_inspect /a b", `Caddyfile:2`},
		{"shape_ready /a b", `Caddyfile:2`},
		{"shape_ready {\n delay 5s\n}", `shape_ready has no subdirective "delay", nor any other, at Caddyfile:3`},
	} {
		_, err := adapt(":80 {\n" + c.lines + "\n}\n")
		require.ErrorContains(t, err, c.want, "of %s", c.lines)
	}
}

// A page whose token is missing by a mistake, as of a variable that is not set, must not come
// without one, nor with an empty one.
func TestATokenThatIsNotThereIsAMistake(t *testing.T) {
	t.Setenv("SHAPER_EMPTY", "  ")
	s := newSite(t)
	for token, want := range map[string]string{
		"{env.SHAPER_NOT_SET}": `control: the token "{env.SHAPER_NOT_SET}": `,
		"{nonsense}":           `control: the token "{nonsense}": `,
		"{env.SHAPER_EMPTY}":   `control: the token "{env.SHAPER_EMPTY}" is empty`,
	} {
		require.ErrorContains(t, s.load("shape_inspect /shaper* {\n control "+token+"\n}"), want)
	}
}

// sources returns the names of the sources that the page at /shaper shows.
func (s *site) sources() (names []string) {
	s.t.Helper()
	var list struct{ Sources []struct{ Name string } }
	require.NoError(s.t, json.Unmarshal([]byte(s.get("/shaper/api/buckets").body), &list))
	for _, source := range list.Sources {
		names = append(names, source.Name)
	}
	return names
}

const shownAtShaper = "shape_inspect /shaper* {\n hosts shop.example\n control open-sesame-open-sesame\n}\n"

// A name may be one that is taken already: nothing may be shown twice, nor the page end the
// process.
func TestLinesWithTheNameOfASiteAreShownOnce(t *testing.T) {
	s := serve(t, shownAtShaper+"shape shop {\n limits 5/s\n site 6/s\n}\nshape /other shop/site limits 7/s\nrespond served")
	require.ElementsMatch(t, []string{"shop", "shop/site"}, s.sources())
	s.reload(shownAtShaper + "shape shop {\n limits 5/s\n site 6/s\n}\nrespond served")
	require.ElementsMatch(t, []string{"shop", "shop/site"}, s.sources())
}

func TestAConfigurationThatFailsIsNotShown(t *testing.T) {
	s := serve(t, shownAtShaper+"shape shop limits 5/s\nrespond served")
	require.Error(t, s.load(shownAtShaper+"shape shop {\n limits 5/s\n site 6/s\n}\nshape /x other limits 5/s\nshape_inspect /y {\n control {nonsense}\n}"))
	require.Equal(t, []string{"shop"}, s.sources())
}

// The page outlives a configuration, but the file of the log may not.
func TestThePageWritesToTheLogOfTheConfigurationInForce(t *testing.T) {
	s := serve(t, shownAtShaper+"shape shop limits 5/s\nrespond served")
	first := s.log
	s.log = strings.TrimSuffix(s.log, "log.json") + "second.json"
	s.reload(shownAtShaper + "shape shop limits 6/s\nrespond served")
	s.get("/")
	a := s.send(http.MethodPost, "/shaper/api/hold", strings.NewReader(`{"source":"shop","key":"-","for":"1s"}`),
		"Content-Type", "application/json", "Authorization", "Bearer open-sesame-open-sesame")
	require.Equal(t, http.StatusOK, a.status, a.body)
	const told = "a bucket was changed"
	text, err := os.ReadFile(s.log + ".app")
	require.NoError(t, err)
	require.Contains(t, string(text), told)
	text, err = os.ReadFile(first + ".app")
	require.NoError(t, err)
	require.NotContains(t, string(text), told)
}

func TestThePageSaysWhatIsWrongWithTheRules(t *testing.T) {
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	write := func(text string) { require.NoError(t, os.WriteFile(rules, []byte(text), 0o600)) }
	write("default: 5/s\n")
	s := serve(t, shownAtShaper+"shape shop {\n rules "+rules+"\n}\nrespond served")
	shows := func(text string) bool { // in the first event of a stream
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://shop.example/shaper/api/events", nil)
		require.NoError(t, err)
		stream, err := s.client.Do(r)
		if errors.Is(err, io.EOF) { // The reload has closed the connection.
			stream, err = s.client.Do(r)
		}
		require.NoError(t, err)
		defer stream.Body.Close()
		hello, lines := "", bufio.NewReader(stream.Body)
		for range 2 {
			line, err := lines.ReadString('\n')
			require.NoError(t, err)
			hello += line
		}
		return strings.Contains(hello, text)
	}
	require.False(t, shows("rules.yaml"))
	write("default: 5/fortnight\n")
	realtime.Until(t, func() bool { return shows("rules.yaml:1:12") }, "the page names the rule")
	require.True(t, shows("shop: the rules in force stay"))
	write("default: 6/s\n")
	realtime.Until(t, func() bool { return !shows("rules.yaml") }, "the page names it no more")

	write("default: 5/fortnight\n")
	realtime.Until(t, func() bool { return shows("rules.yaml:1:12") }, "the page names it again")
	s.reload(shownAtShaper + "shape shop limits 5/s\nrespond served")
	realtime.Until(t, func() bool { return !shows("rules.yaml") }, "nobody reads that file any more")
}

// There is one list of changes: what somebody has changed by the page, the operator can put back at
// the admin endpoint, and the other way round.
func TestWhatThePageHasChangedIsPutBackByTheAdminEndpoint(t *testing.T) {
	s := serve(t, shownAtShaper+"shape shop limits 50/s\nrespond served")
	s.get("/")
	ctx, cancel := caddy.NewContext(caddy.Context{Context: t.Context()})
	defer cancel()
	admin := new(caddyshaper.Admin)
	require.NoError(t, admin.Provision(ctx))
	atAdmin := func(method, path, body string) (status int, answer string) {
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.RemoteAddr = "127.0.0.1:4000"
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		require.NoError(t, admin.Routes()[0].Handler.ServeHTTP(w, r))
		return w.Code, w.Body.String()
	}
	atPage := func(path, body string) answer {
		return s.send(http.MethodPost, "/shaper"+path, strings.NewReader(body), "Content-Type", "application/json", "Authorization", "Bearer open-sesame-open-sesame")
	}
	const change, of = `{"source":"shop","key":"-","limits":"10/s","for":"1m"}`, `{"source":"shop","key":"-"}`

	require.Equal(t, http.StatusOK, atPage("/api/limits", change).status)
	_, changes := atAdmin(http.MethodGet, "/shape/api/changes", "")
	require.Contains(t, changes, `"in_force":[{"kind":"limits","source":"shop"`)
	status, text := atAdmin(http.MethodPost, "/shape/api/reset", of)
	require.Equal(t, http.StatusOK, status, text)
	require.Contains(t, s.get("/shaper/api/changes").body, `"in_force":[]`)

	status, text = atAdmin(http.MethodPost, "/shape/api/limits", change)
	require.Equal(t, http.StatusOK, status, text)
	require.Equal(t, http.StatusOK, atPage("/api/reset", of).status)
	require.Equal(t, http.StatusUnauthorized, s.send(http.MethodPost, "/shaper/api/reset", strings.NewReader(of), "Content-Type", "application/json", "Authorization", "Bearer another-token-of-no-use").status)
}

const inspected = "shape_inspect /shaper* {\n hosts shop.example\n}\n"

// The page shows whose turn it is, and a reload that changes weights goes on with it.
func TestThePageShowsWhoseTurnItIs(t *testing.T) {
	s := serve(t, inspected+fairShape("1/h", "weight gold 4"))
	require.Equal(t, 200, s.get("/0").status)
	leave := s.inLineWith([]string{"X-Team", "gold"}, "line", "/g1", "/g2")
	s.reload(inspected + fairShape("1/h", "weight silver 2"))
	leaveToo := s.inLineWith([]string{"X-Team", "silver"}, "line", "/s1")
	var turns struct {
		Keys, Waiting int
		Rows          []struct {
			Key             string
			Weight, Waiting int
		}
	}
	a := s.get("/shaper/api/v1/keys/line/")
	require.Equal(t, http.StatusOK, a.status, a.body)
	require.NoError(t, json.Unmarshal([]byte(a.body), &turns))
	require.Equal(t, 2, turns.Keys)
	require.Equal(t, 3, turns.Waiting)
	require.Equal(t, "gold", turns.Rows[0].Key)
	require.Equal(t, 4, turns.Rows[0].Weight, "that of before the reload, until its line is empty")
	require.Equal(t, "silver", turns.Rows[1].Key)
	require.Equal(t, 2, turns.Rows[1].Weight)
	s.reload(inspected + fairShape("1000/s", ""))
	for _, a := range append(leave(), leaveToo()...) {
		require.Equal(t, 200, a.status)
	}
}

// The page of a gateway shows what was taken of the quota, and by whom.
func TestThePageShowsWhatWasTakenOfAQuota(t *testing.T) {
	s := serve(t, inspected+quotaShape("requests 60\n tokens 6000\n output 3000", "depth 9\n wait 24h"))
	s.upstream.serves(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"usage":{"prompt_tokens":500,"completion_tokens":700}}`)
	})
	for range 2 {
		require.Equal(t, 200, s.send(http.MethodPost, "/0", strings.NewReader(`{"model":"m","max_tokens":800}`), "X-Team", "gold").status)
	}
	var quota struct {
		Provider string
		Parts    []struct {
			Name        string
			Used, Limit int
		}
		Scarcest string
		Level    float64
		Teams    []struct {
			Team     string
			Requests int `json:"hour_requests"`
			Tokens   int `json:"minute_tokens"`
		}
		Refusals int `json:"provider_refusals"`
	}
	a := s.get("/shaper/api/v1/quota/line/")
	require.Equal(t, http.StatusOK, a.status, a.body)
	require.NoError(t, json.Unmarshal([]byte(a.body), &quota))
	require.Equal(t, "openai-compatible", quota.Provider)
	var parts []string
	for _, part := range quota.Parts {
		parts = append(parts, fmt.Sprintf("%s %d of %d", part.Name, part.Used, part.Limit))
	}
	require.Equal(t, []string{"requests 2 of 60", "tokens 2400 of 6000", "output tokens 1400 of 3000"}, parts)
	require.Equal(t, "output tokens", quota.Scarcest)
	require.Positive(t, quota.Level)
	require.Len(t, quota.Teams, 1)
	require.Equal(t, "gold", quota.Teams[0].Team)
	require.Equal(t, 2, quota.Teams[0].Requests)
	require.Equal(t, 2400, quota.Teams[0].Tokens)
	require.Zero(t, quota.Refusals)
}

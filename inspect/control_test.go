package inspect_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/inspect"
	"example.com/leakybucket/internal/made"
)

// refused requires that an answer is an error, and returns its parameter and message.
func refused(t *testing.T, status int, w *httptest.ResponseRecorder) (parameter, message string) {
	t.Helper()
	require.Equal(t, status, w.Code, "%s", w.Body)
	var answer struct {
		Error struct{ Parameter, Message string }
	}
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer))
	require.NotEmpty(t, answer.Error.Message)
	return answer.Error.Parameter, answer.Error.Message
}

const valid = `{"source":"one","limits":"5/s","for":"10m"}`

func header(name string, values ...string) func(*http.Request) {
	return func(r *http.Request) {
		r.Header.Del(name)
		for _, value := range values {
			r.Header.Add(name, value)
		}
	}
}

func TestNothingCanBeChangedWithoutAProperToken(t *testing.T) {
	for _, c := range []struct {
		opts []inspect.Option
		err  string // of New; "": none
		says string
	}{
		{nil, "", "made without WithControl"},
		{[]inspect.Option{inspect.WithHosts("shapers.internal")}, "", "made without WithControl"},
		{[]inspect.Option{inspect.WithControl("")}, "WithControl has no token", "WithControl has no token"},
		{[]inspect.Option{inspect.WithControl("  \n")}, "WithControl has no token", "WithControl has no token"},
		{[]inspect.Option{inspect.WithHosts("shapers.internal"), inspect.WithControl("")}, "WithHosts lets other machines call", "WithHosts lets other machines call"},
	} {
		s := made.Shaper(t, "50/s")
		i := console{log: &logText{}}
		i.Inspector = inspect.New(append(c.opts, inspect.WithLogger(slog.New(slog.NewTextHandler(i.log, nil))))...)
		i.Add("one", inspect.Of(s))
		if c.err == "" {
			require.NoError(t, i.Err())
		} else {
			require.ErrorContains(t, i.Err(), c.err)
			require.Contains(t, i.log.String(), c.err)
		}
		for _, path := range []string{"/api/limits", "/api/reset", "/api/hold", "/api/release"} {
			_, message := refused(t, http.StatusForbidden, i.send(path, valid, header("Authorization", "Bearer fifteen letters")))
			require.Contains(t, message, c.says)
		}
		require.Equal(t, http.StatusOK, ask(i, "/api/buckets").Code, "the rest is served")
		require.Equal(t, made.Limits(t, "50/s"), s.Limits())
		require.NoError(t, i.Close())
	}
}

func TestARequestThatMayNotChangeAnythingIsRefused(t *testing.T) {
	s := made.Shaper(t, "50/s")
	c := newConsole(t, inspect.Of(s))
	for name, r := range map[string]struct {
		status int
		edit   func(*http.Request)
	}{
		"no token":               {http.StatusUnauthorized, header("Authorization")},
		"an empty token":         {http.StatusUnauthorized, header("Authorization", "Bearer ")},
		"another token":          {http.StatusUnauthorized, header("Authorization", "Bearer "+token+"r")},
		"a part of the token":    {http.StatusUnauthorized, header("Authorization", "Bearer "+token[:len(token)-1])},
		"another scheme":         {http.StatusUnauthorized, header("Authorization", "Basic "+token)},
		"two tokens":             {http.StatusUnauthorized, header("Authorization", "Bearer "+token, "Bearer "+token)},
		"a page of another site": {http.StatusForbidden, header("Sec-Fetch-Site", "cross-site")},
		"a page of the same site, but another origin": {http.StatusForbidden, header("Sec-Fetch-Site", "same-site")},
		"an old browser's page of another origin":     {http.StatusForbidden, header("Origin", "http://localhost:9999")},
		"a name that was made to point here":          {http.StatusMisdirectedRequest, func(r *http.Request) { r.Host = "evil.example" }},
		"another machine":                             {http.StatusForbidden, func(r *http.Request) { r.RemoteAddr = "192.0.2.7:4000" }},
		"a form":                                      {http.StatusUnsupportedMediaType, header("Content-Type", "application/x-www-form-urlencoded")},
		"plain text":                                  {http.StatusUnsupportedMediaType, header("Content-Type", "text/plain")},
		"no type":                                     {http.StatusUnsupportedMediaType, header("Content-Type")},
		"a token in the query":                        {http.StatusBadRequest, func(r *http.Request) { r.URL.RawQuery = "token=x" }},
	} {
		w := c.send("/api/limits", valid, r.edit)
		_, message := refused(t, r.status, w)
		require.NotContains(t, w.Body.String(), token, name)
		require.Equal(t, r.status == http.StatusUnauthorized, strings.HasPrefix(w.Header().Get("WWW-Authenticate"), "Bearer "), "%s: %s", name, message)
	}
	w := ask(c, "/api/limits")
	refused(t, http.StatusMethodNotAllowed, w)
	require.Equal(t, "POST", w.Header().Get("Allow"))
	require.Equal(t, made.Limits(t, "50/s"), s.Limits())
	require.Empty(t, c.changes(t))
	require.NotContains(t, c.log.String(), token)
	require.Equal(t, 2, strings.Count(c.log.String(), "a wrong token was sent"))

	// The page itself, and curl with an odd way of writing, may.
	for _, edits := range [][]func(*http.Request){
		{header("Sec-Fetch-Site", "same-origin"), header("Origin", "http://localhost:8080")},
		{header("Authorization", "bearer   "+token), header("Content-Type", "application/json; charset=utf-8")},
	} {
		require.Equal(t, http.StatusOK, c.send("/api/limits", valid, edits...).Code)
	}
}

func TestAWrongBodyIsRefusedByTheNameOfItsField(t *testing.T) {
	s := made.Shaper(t, "50/s")
	g := made.Group[string](t, "1/s")
	c := newConsole(t, inspect.Of(s))
	c.Add("many", inspect.OfGroup(g))
	defer c.Close()
	for _, r := range []struct {
		status              int
		path, body          string
		parameter, contains string
	}{
		{400, "limits", ``, "body", "not a JSON object"},
		{400, "limits", `null`, "body", "not a JSON object"},
		{400, "limits", `[` + valid + `]`, "body", "not a JSON object"},
		{400, "limits", `"limits"`, "body", "not a JSON object"},
		{400, "limits", `{"source":"one"`, "body", "not JSON"},
		{400, "limits", `{"source":"one",}`, "body", "not JSON"},
		{400, "limits", `{"source" "one"}`, "body", "not JSON"},
		{400, "limits", valid + valid, "body", "something follows"},
		{400, "limits", valid + `x`, "body", "something follows"},
		{400, "limits", "{\"source\":\"\xff\"}", "body", "not UTF-8"},
		{400, "limits", strings.Repeat(`{"source":`, 5000), "source", "must be a string"},
		{400, "limits", `{"source":["one"]}`, "source", "must be a string"},
		{400, "limits", `{"source":null}`, "source", "must be a string"},
		{400, "limits", `{"source":"one","for":600,"limits":"5/s"}`, "for", "must be a string"},
		{400, "limits", `{"source":"one","source":"two"}`, "source", "twice"},
		{400, "limits", `{"Source":"one"}`, "Source", "not a field"},
		{400, "limits", `{"__proto__":"one"}`, "__proto__", "not a field"},
		{404, "limits", `{"source":"two","limits":"5/s","for":"10m"}`, "source", "not the name of a source"},
		{404, "limits", `{"source":"one","key":"k","limits":"5/s","for":"10m"}`, "key", "no bucket"},
		{400, "limits", `{"source":"many","limits":"5/s","for":"10m"}`, "key", "missing"},
		{400, "limits", `{"source":"many","key":"k","id":"k","limits":"5/s","for":"10m"}`, "id", "beside key"},
		{400, "limits", `{"source":"many","id":"%","limits":"5/s","for":"10m"}`, "id", "invalid URL escape"},
		{400, "limits", `{"source":"one","limits":"5/s depht 3","for":"10m"}`, "limits", "column 5"},
		{400, "limits", `{"source":"one","limits":"0/s","for":"10m"}`, "limits", "must be above 0"},
		{400, "limits", `{"source":"one","limits":"5/s inflight 3","for":"10m"}`, "limits", "Limits.InFlight"},
		{400, "limits", `{"source":"one","limits":"5/s","for":"999ms"}`, "for", "from 1s to 24h"},
		{400, "limits", `{"source":"one","limits":"5/s","for":"24h0m1s"}`, "for", "from 1s to 24h"},
		{400, "limits", `{"source":"one","limits":"5/s","for":"-10m"}`, "for", "from 1s to 24h"},
		{400, "hold", `{"source":"one","for":"for ever"}`, "for", "from 1s to 24h"},
		{400, "hold", fmt.Sprintf(`{"source":"one","for":"10m","who":"%s"}`, strings.Repeat("x", 101)), "who", "at most 100 bytes"},
		{413, "limits", `{"source":"` + strings.Repeat("x", 64<<10) + `"}`, "", "larger than 65536 bytes"},
		{413, "limits", strings.Repeat("[", 1<<20), "", "larger than 65536 bytes"},
	} {
		parameter, message := refused(t, r.status, c.send("/api/"+r.path, r.body))
		require.Equal(t, r.parameter, parameter, "%.100s: %s", r.body, message)
		require.Contains(t, message, r.contains, "%.100s", r.body)
	}
	require.Equal(t, made.Limits(t, "50/s"), s.Limits())
	require.Empty(t, c.changes(t))
}

func TestTheLogWarnsOfAShortToken(t *testing.T) {
	for token, warns := range map[string]bool{"fifteen letters": true, "0123456789abcdef": false} {
		var log logText
		i := inspect.New(inspect.WithControl(token), inspect.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		require.NoError(t, i.Err())
		require.Equal(t, warns, strings.Contains(log.String(), "is short"), "%s", log.String())
		require.NotContains(t, log.String(), token)
		require.NoError(t, i.Close())
	}
}

func TestTokensCannotBeTriedQuickly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConsole(t, inspect.Of(made.Shaper(t, "50/s")), inspect.WithHosts("shapers.internal"))
		from := func(address string) func(*http.Request) {
			return func(r *http.Request) { r.RemoteAddr = address }
		}
		wrong := header("Authorization", "Bearer 0123456789abcdef")
		try := func(address string, edits ...func(*http.Request)) int {
			return c.send("/api/limits", valid, append(edits, from(address))...).Code
		}
		for range 50 {
			require.Equal(t, http.StatusOK, try("192.0.2.1:4000"), "the right token spends nothing")
		}
		for range 20 {
			require.Equal(t, http.StatusUnauthorized, try("192.0.2.1:4000", wrong))
		}
		// From now on nothing that this address sends tells it whether a token is right.
		w := c.send("/api/limits", valid, wrong, from("192.0.2.1:4001"))
		refused(t, http.StatusTooManyRequests, w)
		require.Equal(t, "1", w.Header().Get("Retry-After"))
		require.Equal(t, http.StatusTooManyRequests, try("192.0.2.1:4001"))
		require.Equal(t, http.StatusOK, try("192.0.2.2:4000"), "others may still change things")
		time.Sleep(200*time.Millisecond - 1)
		require.Equal(t, http.StatusTooManyRequests, try("192.0.2.1:4001", wrong))
		time.Sleep(time.Nanosecond)
		require.Equal(t, http.StatusUnauthorized, try("192.0.2.1:4001", wrong))
		require.Equal(t, http.StatusTooManyRequests, try("192.0.2.1:4001", wrong))

		// A network of IPv6 is one address.
		for n := range 20 {
			require.Equal(t, http.StatusUnauthorized, try(fmt.Sprintf("[2001:db8::%d]:4000", n), wrong))
		}
		require.Equal(t, http.StatusTooManyRequests, try("[2001:db8::9999]:4000", wrong))
		require.Equal(t, http.StatusUnauthorized, try("[2001:db8:0:1::1]:4000", wrong))
	})
}

// Each request that docs/inspect.md shows does what it says.
func TestTheDocumentedChangesAreAccepted(t *testing.T) {
	guide, err := os.ReadFile("../docs/inspect.md")
	require.NoError(t, err)
	shown := regexp.MustCompile(`--json '(.*)' http://127\.0\.0\.1:6060(/api/v1/\w+)\n`).FindAllStringSubmatch(string(guide), -1)
	require.Len(t, shown, 5)
	g := made.Group[string](t, "1/s")
	c := newConsole(t, inspect.Of(made.Shaper(t, "50/s depth 100")))
	c.Add("upstream", inspect.Of(made.Shaper(t, "50/s depth 100")))
	c.Add("clients", inspect.OfGroup(g))
	defer c.Close()
	for _, m := range shown {
		c.post(t, m[2], m[1])
	}
	require.Contains(t, string(guide), strings.Join(whats(c.changes(t))[:1], ""))
}

// The document says which fields a body has, and which of them it must have.
func TestTheDocumentedFieldsAreThoseThatAreTaken(t *testing.T) {
	c := newConsole(t, inspect.Of(made.Shaper(t, "50/s")))
	paths := 0
	for path, operations := range document().Paths {
		post, ok := operations["post"]
		if !ok {
			continue
		}
		paths++
		of := post.RequestBody.Content["application/json"].Schema
		for _, name := range []string{"source", "key", "id", "limits", "for", "who", "until"} {
			parameter, message := refused(t, http.StatusBadRequest, c.send(path, fmt.Sprintf(`{%q:1}`, name)))
			require.Equal(t, name, parameter)
			_, documented := of.Properties[name]
			require.Contains(t, message, map[bool]string{true: "must be a string", false: "is not a field here"}[documented], "%s of %s", name, path)
		}
		for _, missing := range of.Required {
			fields := map[string]string{}
			for _, name := range of.Required {
				if name != missing {
					fields[name] = "x"
				}
			}
			body, err := json.Marshal(fields)
			require.NoError(t, err)
			parameter, _ := refused(t, http.StatusBadRequest, c.send(path, string(body)))
			require.Equal(t, missing, parameter, path)
		}
	}
	require.Equal(t, 4, paths)
}

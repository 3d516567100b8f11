package inspect_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/adapt"
	"example.com/leakybucket/inspect"
	"example.com/leakybucket/internal/made"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
	"example.com/leakybucket/shaper/shared"
)

// A schema is as much of a JSON Schema as the document uses.
type schema map[string]any

type operation struct {
	RequestBody struct {
		Content map[string]struct {
			Schema struct {
				Required   []string
				Properties map[string]any
			}
		}
	}
	Parameters []struct {
		Name, In string
		Schema   schema
	}
	Responses map[string]struct {
		Content map[string]struct{ Schema schema }
	}
	Events map[string]schema `json:"x-events"`
}

type openAPI struct {
	OpenAPI    string
	Paths      map[string]map[string]operation
	Components struct{ Schemas map[string]schema }
}

// document is the description of the API.
var document = sync.OnceValue(func() (doc openAPI) {
	text, err := os.ReadFile("openapi.json")
	if err == nil {
		err = json.Unmarshal(text, &doc)
	}
	if err != nil {
		panic(err)
	}
	return doc
})

// requireDescribed requires that the answer to a request is as the document says.
func requireDescribed(t *testing.T, method, target string, w *httptest.ResponseRecorder) {
	t.Helper()
	path, _, _ := strings.Cut(target, "?")
	if !strings.HasPrefix(path, "/api/v1/") {
		path = strings.Replace(path, "/api/", "/api/v1/", 1)
	}
	if parts := strings.Split(path, "/"); len(parts) > 4 { // such as "/api/v1/line/one/"
		path = strings.Join(parts[:4], "/") + "/{source}/{id}"
	}
	status := strconv.Itoa(w.Code)
	if w.Code == http.StatusMisdirectedRequest {
		status = "default" // Any request may be answered so.
	}
	response, ok := document().Paths[path][method].Responses[status]
	require.True(t, ok, "%s has no status %s", path, status)
	var value any
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &value))
	require.NoError(t, document().check(response.Content["application/json"].Schema, value, target))
}

func TestTheDocumentDescribesWhatIsServed(t *testing.T) {
	described := map[string][]string{}
	for path, operations := range document().Paths {
		for method, o := range operations {
			names := []string{}
			for _, p := range o.Parameters {
				if p.In == "query" {
					names = append(names, p.Name)
				}
			}
			described[strings.ToUpper(method)+" "+path] = names
		}
	}
	served := map[string][]string{}
	for _, r := range inspect.Routes() {
		served[r.Method+" "+r.Path] = append([]string{}, r.Parameters...)
	}
	require.Equal(t, served, described)
}

// check returns an error if a value does not fit a schema, or nil.
func (doc openAPI) check(s schema, value any, at string) error {
	if name, ok := s["$ref"].(string); ok {
		target, ok := doc.Components.Schemas[strings.TrimPrefix(name, "#/components/schemas/")]
		if !ok {
			return fmt.Errorf("%s: the document has no %s", at, name)
		}
		return doc.check(target, value, at)
	}
	if choices, ok := s["anyOf"].([]any); ok {
		var errs []string
		for _, one := range choices {
			err := doc.check(one.(map[string]any), value, at)
			if err == nil {
				return nil
			}
			errs = append(errs, err.Error())
		}
		return fmt.Errorf("%s", strings.Join(errs, "; "))
	}
	var types []any
	switch t := s["type"].(type) {
	case string:
		types = []any{t}
	case []any:
		types = t
	}
	kind := map[bool]string{true: "integer"}[isWhole(value)]
	switch v := value.(type) {
	case nil:
		kind = "null"
	case string:
		kind = "string"
		if _, err := time.Parse(time.RFC3339Nano, v); s["format"] == "date-time" && (err != nil || !strings.HasSuffix(v, "Z")) {
			return fmt.Errorf("%s is %q, which is no instant in UTC", at, v)
		}
		if enum, ok := s["enum"].([]any); ok && !slices.Contains(enum, value) {
			return fmt.Errorf("%s is %q, which is none of %v", at, v, enum)
		}
	case bool:
		kind = "boolean"
	case float64:
		if kind == "" || !slices.Contains(types, any("integer")) {
			kind = "number"
		}
		if least, ok := s["minimum"].(float64); ok && v < least {
			return fmt.Errorf("%s is %v, below %v", at, v, least)
		}
		if most, ok := s["maximum"].(float64); ok && v > most {
			return fmt.Errorf("%s is %v, above %v", at, v, most)
		}
	case []any:
		kind = "array"
		for k, item := range v {
			if err := doc.check(s["items"].(map[string]any), item, fmt.Sprintf("%s[%d]", at, k)); err != nil {
				return err
			}
		}
	case map[string]any:
		kind = "object"
		properties, ok := s["properties"].(map[string]any)
		if !ok {
			break
		}
		for _, name := range s["required"].([]any) {
			if _, ok := v[name.(string)]; !ok {
				return fmt.Errorf("%s has no %s", at, name)
			}
		}
		for name, item := range v {
			of, ok := properties[name].(map[string]any)
			if !ok {
				return fmt.Errorf("%s has %s, which the document does not have", at, name)
			}
			if err := doc.check(of, item, at+"."+name); err != nil {
				return err
			}
		}
	}
	if !slices.Contains(types, any(kind)) {
		return fmt.Errorf("%s is %v, of type %s, not %v", at, value, kind, types)
	}
	return nil
}

func isWhole(value any) bool {
	f, ok := value.(float64)
	return ok && f == float64(int64(f))
}

// The check of this test must see faults, or it would hold nobody to anything.
func TestTheCheckSeesWhatIsWrong(t *testing.T) {
	doc := document()
	right := map[string]any{"position": 1.0, "cost": 1.0, "since": "2026-01-01T00:00:00.5Z", "waited_s": 0.5, "leaves": "2026-01-01T00:00:00Z", "leaves_in_s": 0.0}
	of := schema{"$ref": "#/components/schemas/Waiter"}
	require.NoError(t, doc.check(of, right, "w"))
	for want, change := range map[string]func(map[string]any){
		"w has no cost":          func(m map[string]any) { delete(m, "cost") },
		"w has more":             func(m map[string]any) { m["more"] = 1 },
		"w.cost is 1.5":          func(m map[string]any) { m["cost"] = 1.5 },
		"w.cost is <nil>":        func(m map[string]any) { m["cost"] = nil },
		"w.cost is 1, of type s": func(m map[string]any) { m["cost"] = "1" },
		"w.position is 0, below": func(m map[string]any) { m["position"] = 0.0 },
		"w.since is \"now\"":     func(m map[string]any) { m["since"] = "now" },
		"no instant in UTC":      func(m map[string]any) { m["since"] = "2026-01-01T00:00:00+01:00" },
	} {
		wrong := maps.Clone(right)
		change(wrong)
		require.ErrorContains(t, doc.check(of, wrong, "w"), want)
	}
}

// metered returns a Shaper with two further levels, at which something is reserved.
func metered(t *testing.T) *shaper.Shaper {
	s := made.Shaper(t, "1/s burst 9", shaper.WithMeters(shaper.Meter{Name: "input", Rate: 10, Burst: 40, Returns: true}, shaper.Meter{Name: "output", Rate: rate.Inf}))
	_, err := s.ReserveEach(t.Context(), 1, 30, 7)
	require.NoError(t, err)
	return s
}

// Who looks at one bucket sees each of its levels.
func TestEachLevelOfABucketIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := scene(t, inspect.WithLogger(slog.New(slog.DiscardHandler)))
		i.Add("metered", inspect.Of(metered(t)))
		time.Sleep(time.Second)
		var answer struct{ Meters json.RawMessage }
		require.NoError(t, json.Unmarshal(ask(i, "/api/v1/buckets/metered/").Body.Bytes(), &answer))
		require.JSONEq(t, `[
			{"name": "input", "rate": 10, "burst": 40, "returns": true, "level": 20, "fill": 0.5, "reserved": 30, "given_back": 0, "charged": 0, "forfeited": 0, "missed": 0},
			{"name": "output", "rate": null, "burst": 1, "returns": false, "level": 0, "fill": 0, "reserved": 7, "given_back": 0, "charged": 0, "forfeited": 0, "missed": 0}
		]`, string(answer.Meters))
	})
}

// Who looks at one bucket sees between which bounds its rate adapts, and why it was lowered last.
func TestTheReasonOfTheLastDecreaseIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := scene(t, inspect.WithLogger(slog.New(slog.DiscardHandler)))
		s := made.Shaper(t, "100/s depth 9")
		a, err := adapt.New(s, adapt.Config{Min: 2, Start: 80})
		require.NoError(t, err)
		i.Add("adaptive", inspect.OfAdaptive(s, a))
		look := func() string {
			var answer struct{ Adapt json.RawMessage }
			require.NoError(t, json.Unmarshal(ask(i, "/api/v1/buckets/adaptive/").Body.Bytes(), &answer))
			return string(answer.Adapt)
		}
		require.JSONEq(t, `{"rate": 80, "min": 2, "max": 100, "decreases": 0, "refused": 0, "failed": 0, "slow": 0, "last_decrease": null, "reason": ""}`, look())
		for range 5 {
			a.Observe(adapt.Failed, 0)
		}
		at := time.Now().UTC().Format(time.RFC3339Nano)
		time.Sleep(time.Second)
		require.JSONEq(t, `{"rate": 40, "min": 2, "max": 100, "decreases": 1, "refused": 0, "failed": 1, "slow": 0, "last_decrease": "`+at+`", "reason": "failed"}`, look())
		require.Panics(t, func() { inspect.OfAdaptive(s, nil) })
	})
}

// Everything that a running Inspector answers is as the document says.
func TestAnswersAreAsTheDocumentSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := scene(t, inspect.WithControl(token), inspect.WithLogger(slog.New(slog.DiscardHandler)))
		adaptive := made.Shaper(t, "100/s depth 9")
		a, err := adapt.New(adaptive, adapt.Config{Start: 80})
		require.NoError(t, err)
		a.Observe(adapt.Refused, 0)
		i.Add("adaptive", inspect.OfAdaptive(adaptive, a))
		i.Add("unlimited", inspect.Of(made.Shaper(t, "inf inflight 3")))
		i.Add("metered", inspect.Of(metered(t)))
		held := made.Shaper(t, "50/s depth 3 wait 2s")
		held.Hold(time.Hour)
		burst(held, 2)
		i.Add("held", inspect.Of(held))
		i.Add("explained", inspect.OfGroup(made.Group[string](t, "1/s"), inspect.WithExplain(func(string) (string, string, int) { return "r", "f", 1 })))
		i.Report(http.ErrAbortHandler)

		for _, test := range []struct {
			target string
			status int
		}{
			{"/api/v1/buckets?limit=2", 200},
			{"/api/v1/buckets/metered/", 200},
			{"/api/v1/buckets/adaptive/", 200},
			{"/api/v1/buckets", 200},
			{"/api/v1/buckets?limit=0", 400},
			{"/api/v1/buckets?source=x", 404},
			{"/api/v1/buckets/one/", 200},
			{"/api/v1/buckets/many/send%2Fa", 200},
			{"/api/v1/buckets/dry/send%2Fd", 200},
			{"/api/v1/buckets/unlimited/", 200},
			{"/api/v1/buckets/held/", 200},
			{"/api/v1/buckets/many/x", 404},
			{"/api/v1/line/many/send%2Fa", 200},
			{"/api/v1/line/one/", 200},
			{"/api/v1/line/one/?max=x", 400},
			{"/api/v1/top", 200},
			{"/api/v1/top?n=0", 400},
			{"/api/v1/changes", 200},
			{"/api/v1/changes?source=x", 404},
			{"/api/v1/openapi.json", 200},
			{"/api/v1/openapi.json?x=1", 400},
			{"/api/v1/events?source=x", 404},
		} {
			w := ask(i, test.target)
			require.Equal(t, test.status, w.Code, test.target)
			require.Equal(t, w.Body, ask(i, strings.Replace(test.target, "/v1/", "/", 1)).Body, "the path of before, of %s", test.target)
			requireDescribed(t, "get", test.target, w)
		}
		for _, test := range []struct {
			path, body string
			status     int
		}{
			{"/api/v1/hold", `{"source":"one","for":"10m"}`, 200},
			{"/api/v1/release", `{"source":"one"}`, 200},
			{"/api/v1/limits", `{"source":"many","key":"send/a","limits":"1/s depth 9","for":"1m","who":"me"}`, 200},
			{"/api/v1/reset", `{"source":"many","key":"send/a"}`, 200},
			{"/api/v1/limits", `{"source":"many","key":"send/a","limits":"x","for":"1m"}`, 400},
			{"/api/v1/hold", `{"source":"nobody","for":"1m"}`, 404},
		} {
			w := recorded(i, command(test.path, test.body))
			require.Equal(t, test.status, w.Code, w.Body)
			requireDescribed(t, "post", test.path, w)
		}
		requireDescribed(t, "get", "/api/v1/top", ask(i, "/api/v1/top", func(r *http.Request) { r.Host = "evil.example" }))
		checkEvents(t, i, held)
	})
}

// checkEvents reads all kinds of events.
func checkEvents(t *testing.T, i *inspect.Inspector, held *shaper.Shaper) {
	seen := map[string]bool{}
	for _, query := range []string{"", "?source=held", "?source=many", "?source=many&key=send/a", "?source=many&key=none", "?source=dry&key=send/d"} {
		r := listen(t, i, "/api/v1/events"+query)
		for n := 0; n < 8 || query == "" && !seen["step"]; n++ {
			e := r.next()
			if e.name == "detail" {
				i.Report(http.ErrAbortHandler)
				held.Hold(0)
			}
			if e.name == "detail" && query == "?source=held" {
				require.Equal(t, http.StatusOK, recorded(i, command("/api/v1/hold", `{"source":"held","for":"1s"}`)).Code)
			}
			if e.name == "report" && query == "?source=held" {
				require.NoError(t, held.Close())
			}
			checkEvent(t, e)
			seen[e.name] = true
		}
		if query == "?source=dry&key=send/d" {
			go i.Close()
			for !seen["bye"] {
				e := r.next()
				checkEvent(t, e)
				seen[e.name] = true
			}
		}
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(document().Paths["/api/v1/events"]["get"].Events)), slices.Collect(maps.Keys(seen)))
}

func checkEvent(t *testing.T, e event) {
	t.Helper()
	of, ok := document().Paths["/api/v1/events"]["get"].Events[e.name]
	require.True(t, ok, "the document has no event %s", e.name)
	var value any
	require.NoError(t, json.Unmarshal([]byte(e.data), &value))
	require.NoError(t, document().check(of, value, e.name))
}

// Each figure stands under its own name: here no two of a kind are alike. If SHAPER_UPDATE_GOLDEN is 1,
// the file is written anew.
func TestAnswersAreTheOnesOfTheFile(t *testing.T) {
	var answers bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		i := answering(t)
		write := func(asked, answer string) {
			fmt.Fprintf(&answers, "%s\n", asked)
			require.NoError(t, json.Indent(&answers, []byte(strings.TrimSpace(answer)), "", " "))
			answers.WriteString("\n")
		}
		for _, target := range []string{"buckets?source=down", "buckets/reserved/", "buckets/closed/", "buckets/many/a",
			"line/one/", "keys/one/?max=1", "quota/one/?teams=1", "top", "changes"} {
			write("GET "+target, ask(i, "/api/v1/"+target).Body.String())
		}
		fmt.Fprintf(&answers, "GET buckets.csv?sort=-refused\n%s", ask(i, "/api/v1/buckets.csv?sort=-refused").Body)
		r := listen(t, i, "/api/v1/events?source=one")
		for _, name := range []string{"hello", "detail", "frame"} {
			e := r.next()
			for e.name != name {
				e = r.next()
			}
			write(name, e.data)
		}
	})
	const file = "testdata/answers.txt"
	if os.Getenv("SHAPER_UPDATE_GOLDEN") == "1" {
		require.NoError(t, os.WriteFile(file, answers.Bytes(), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), answers.String())
}

// answering makes an Inspector whose sources have all kinds of figures.
func answering(t *testing.T) *inspect.Inspector {
	fair := made.Shaper(t, "4/s burst 2 depth 9", shaper.WithFairQueue(weights))
	c := newConsole(t, inspect.OfQuota(fair, func(int) inspect.Quota { return sample() }))
	g := made.GroupBy(t, func(string) (shaper.Limits, error) { return made.Limits(t, "1/h burst 9 depth 4 wait 50h"), nil })
	c.Add("many", inspect.OfGroup(g, inspect.WithExplain(func(string) (string, string, int) { return "usual", "limits.yaml", 3 })))

	// All that can become of costs that were reserved.
	reserved := made.Shaper(t, "1/s burst 100 inflight 7")
	c.Add("reserved", inspect.Of(reserved))
	var settles []func(int)
	for range 4 {
		settle, err := reserved.Reserve(t.Context(), 20)
		require.NoError(t, err)
		settles = append(settles, settle)
	}
	settles[0](13)
	settles[1](22)
	// All has drained. Samples are taken at whole tenths of a second, and nothing else happens then.
	time.Sleep(100*time.Second + 30*time.Millisecond)
	settles[2](5)

	server := buckettest.NewMemory()
	server.Fail(func(int, string) buckettest.Fault { return buckettest.FailBefore })
	down := made.Shaper(t, "1/s", shaper.WithBucket(server, "k", shared.Options{}))
	c.Add("down", inspect.Of(down))
	for range 3 {
		require.ErrorIs(t, down.Wait(t.Context()), shaper.ErrUnavailable)
	}
	closed := made.Shaper(t, "1/s")
	c.Add("closed", inspect.Of(closed))
	for range 4 {
		require.ErrorIs(t, closed.WaitN(t.Context(), 50), shaper.ErrTooCostly)
	}
	require.NoError(t, closed.Close())
	require.ErrorIs(t, closed.Wait(t.Context()), shaper.ErrClosed)

	ctx, giveUp := context.WithCancel(t.Context())
	turnsOf(t, c, "/api/v1/keys/one/") // Departures are noted from now on.
	time.Sleep(500 * time.Millisecond)
	comes(fair, "bb", 7)
	for range 3 {
		go func() { _ = fair.For("a").WaitN(ctx, 1) }()
	}
	synctest.Wait()
	late, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	require.ErrorIs(t, fair.For("a").Wait(late), shaper.ErrTooLate)
	comes(fair, "bb", 5)
	time.Sleep(600 * time.Millisecond)
	giveUp()

	lineUp(t, g, "a", 12)
	c.post(t, "/api/v1/limits", `{"source":"many","key":"a","limits":"2/h burst 9 depth 4","for":"10m","who":"Ann"}`)
	c.post(t, "/api/v1/hold", `{"source":"one","for":"10m"}`)
	c.post(t, "/api/v1/release", `{"source":"one"}`)
	time.Sleep(time.Millisecond) // or there would be two changes of one age
	c.post(t, "/api/v1/hold", `{"source":"reserved","for":"10m"}`)
	time.Sleep(100 * time.Millisecond)
	return c.Inspector
}

package inspect_test

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/inspect"
	"example.com/leakybucket/shaper"
)

// A schema is as much of a JSON Schema as the document uses.
type schema map[string]any

type operation struct {
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

func readDocument(t *testing.T) (doc openAPI) {
	i := inspect.New()
	defer i.Close()
	require.NoError(t, json.Unmarshal(ask(i, "/api/v1/openapi.json").Body.Bytes(), &doc))
	require.Equal(t, "3.1.0", doc.OpenAPI)
	return doc
}

func TestTheDocumentDescribesWhatIsServed(t *testing.T) {
	doc := readDocument(t)
	described := map[string][]string{}
	for path, operations := range doc.Paths {
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
	doc := readDocument(t)
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

// Everything that a running Inspector answers is as the document says.
func TestAnswersAreAsTheDocumentSays(t *testing.T) {
	doc := readDocument(t)
	synctest.Test(t, func(t *testing.T) {
		i := scene(t, inspect.WithControl(token), inspect.WithLogger(slog.New(slog.DiscardHandler)))
		i.Add("unlimited", inspect.Of(shaperOf(t, "inf inflight 3")))
		held := shaperOf(t, "50/s depth 3 wait 2s")
		held.Hold(time.Hour)
		burst(held, 2)
		i.Add("held", inspect.Of(held))
		i.Add("explained", inspect.OfGroup(groupOf(t, "1/s"), inspect.WithExplain(func(string) (string, string, int) { return "r", "f", 1 })))
		i.Report(http.ErrAbortHandler)

		for _, test := range []struct {
			target, path string
			status       int
		}{
			{"/api/v1/buckets?limit=2", "/api/v1/buckets", 200},
			{"/api/v1/buckets", "/api/v1/buckets", 200},
			{"/api/v1/buckets?limit=0", "/api/v1/buckets", 400},
			{"/api/v1/buckets?source=x", "/api/v1/buckets", 404},
			{"/api/v1/buckets/one/", "/api/v1/buckets/{source}/{id}", 200},
			{"/api/v1/buckets/many/send%2Fa", "/api/v1/buckets/{source}/{id}", 200},
			{"/api/v1/buckets/dry/send%2Fd", "/api/v1/buckets/{source}/{id}", 200},
			{"/api/v1/buckets/unlimited/", "/api/v1/buckets/{source}/{id}", 200},
			{"/api/v1/buckets/held/", "/api/v1/buckets/{source}/{id}", 200},
			{"/api/v1/buckets/many/x", "/api/v1/buckets/{source}/{id}", 404},
			{"/api/v1/line/many/send%2Fa", "/api/v1/line/{source}/{id}", 200},
			{"/api/v1/line/one/", "/api/v1/line/{source}/{id}", 200},
			{"/api/v1/line/one/?max=x", "/api/v1/line/{source}/{id}", 400},
			{"/api/v1/top", "/api/v1/top", 200},
			{"/api/v1/top?n=0", "/api/v1/top", 400},
			{"/api/v1/what-if?source=one&limits=50/s", "/api/v1/what-if", 200},
			{"/api/v1/what-if?source=one&limits=50", "/api/v1/what-if", 400},
			{"/api/v1/what-if?source=x&limits=50/s", "/api/v1/what-if", 404},
			{"/api/v1/changes", "/api/v1/changes", 200},
			{"/api/v1/changes?source=x", "/api/v1/changes", 404},
			{"/api/v1/openapi.json", "/api/v1/openapi.json", 200},
			{"/api/v1/openapi.json?x=1", "/api/v1/openapi.json", 400},
			{"/api/v1/events?source=x", "/api/v1/events", 404},
		} {
			w := ask(i, test.target)
			require.Equal(t, test.status, w.Code, test.target)
			response, ok := doc.Paths[test.path]["get"].Responses[fmt.Sprint(test.status)]
			require.True(t, ok, "%s has no status %d", test.path, test.status)
			require.Equal(t, w.Body, ask(i, strings.Replace(test.target, "/v1/", "/", 1)).Body, "the path of before, of %s", test.target)
			var value any
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &value))
			require.NoError(t, doc.check(response.Content["application/json"].Schema, value, test.target))
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
			var value any
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &value))
			of := doc.Paths[test.path]["post"].Responses[fmt.Sprint(test.status)].Content["application/json"].Schema
			require.NoError(t, doc.check(of, value, test.path+test.body))
		}
		refused := request(http.MethodGet, "/api/v1/top")
		refused.Host = "evil.example"
		var value any
		require.NoError(t, json.Unmarshal(recorded(i, refused).Body.Bytes(), &value))
		require.NoError(t, doc.check(doc.Paths["/api/v1/top"]["get"].Responses["default"].Content["application/json"].Schema, value, "refused"))
		checkEvents(t, doc, i, held)
	})
}

// command returns a request that changes something.
func command(path, body string) *http.Request {
	r := request(http.MethodPost, path)
	r.Body = io.NopCloser(strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+token)
	return r
}

// checkEvents reads all kinds of events.
func checkEvents(t *testing.T, doc openAPI, i *inspect.Inspector, held *shaper.Shaper) {
	events := doc.Paths["/api/v1/events"]["get"].Events
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
			checkEvent(t, doc, events, e)
			seen[e.name] = true
		}
		if query == "?source=dry&key=send/d" {
			go i.Close()
			for !seen["bye"] {
				e := r.next()
				checkEvent(t, doc, events, e)
				seen[e.name] = true
			}
		}
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(events)), slices.Collect(maps.Keys(seen)))
}

func checkEvent(t *testing.T, doc openAPI, events map[string]schema, e event) {
	of, ok := events[e.name]
	require.True(t, ok, "the document has no event %s", e.name)
	var value any
	require.NoError(t, json.Unmarshal([]byte(e.data), &value))
	require.NoError(t, doc.check(of, value, e.name))
}

package config_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/config"
	"example.com/leakybucket/shaper"
)

// The file of the package comment.
const example = `# shaper.yaml
default: 20/s depth 50                    # keys that match nothing; without it they are an error
limits:
  api: 50/s depth 100                     # the text form of shaper.Limits
  api/192.168.11.3: "500, 100/sec"        # a special case below a general rule
  login: {rate: 5/min, burst: 5}          # the same as a mapping: rate burst depth wait slack inflight
  api/premium:
    rate: 200/s
    depth: 400
    wait: 2s
    candidate: 100/s depth 200            # a number to try: kept account of, holds nobody up
`

func parse(t testing.TB, text string) *config.Rules {
	t.Helper()
	rules, err := config.Parse("shaper.yaml", []byte(text))
	require.NoError(t, err)
	return rules
}

func TestTheLongestPrefixAtASlashWins(t *testing.T) {
	rules := parse(t, example)
	for key, rule := range map[string]string{
		"api":                             "api",
		"api/":                            "api",
		"api/premium":                     "api/premium",
		"api/premium/42":                  "api/premium",
		"api/premium/42/x/y":              "api/premium",
		"api/premium2":                    "api",
		"api/premiu":                      "api",
		"api/192.168.11.3":                "api/192.168.11.3",
		"api/192.168.11.3/x":              "api/192.168.11.3",
		"api/192.168.11.33":               "api",
		"api2":                            "",
		"ap":                              "",
		"":                                "",
		"/api":                            "",
		"premium":                         "",
		"api%2Fpremium":                   "",
		"login":                           "login",
		strings.Repeat("x", 1e6):          "",
		strings.Repeat("/", 1e6):          "",
		"api/" + strings.Repeat("/", 1e6): "api",
	} {
		got, ok := rules.Explain(key)
		require.True(t, ok)
		require.Equal(t, rule, got.Key, "%.40q", key)
		l, err := rules.Limits(key)
		require.NoError(t, err)
		require.Equal(t, got.Limits, l)
	}
}

func TestBothSpellingsOfLimits(t *testing.T) {
	rules := parse(t, example)
	all := slices.Collect(rules.All())
	require.Equal(t, []config.Rule{
		{Key: "", Limits: shaper.Limits{Rate: 20, Depth: 50}, File: "shaper.yaml", Line: 2},
		{Key: "api", Limits: shaper.Limits{Rate: 50, Depth: 100}, File: "shaper.yaml", Line: 4},
		{Key: "api/192.168.11.3", Limits: shaper.Limits{Rate: 100, Burst: 500}, File: "shaper.yaml", Line: 5},
		{Key: "api/premium", Limits: shaper.Limits{Rate: 200, Depth: 400, MaxWait: 2 * time.Second},
			Candidate: &shaper.Limits{Rate: 100, Depth: 200}, File: "shaper.yaml", Line: 7},
		{Key: "login", Limits: shaper.Limits{Rate: 5. / 60, Burst: 5}, File: "shaper.yaml", Line: 6},
	}, all)

	for text, want := range map[string]shaper.Limits{
		"1 per 2s burst 10 depth 100 wait 2s slack 10ms inflight 3":                   {Rate: 0.5, Burst: 10, Depth: 100, MaxWait: 2 * time.Second, Slack: 10 * time.Millisecond, InFlight: 3},
		"{rate: 1 per 2s, burst: 10, depth: 100, wait: 2s, slack: 10ms, inflight: 3}": {Rate: 0.5, Burst: 10, Depth: 100, MaxWait: 2 * time.Second, Slack: 10 * time.Millisecond, InFlight: 3},
		"{rate: inf, depth: 0}":              {Rate: rate.Inf},
		"'20/min'":                           {Rate: 1. / 3},
		">-\n  20/min\n  depth 3":            {Rate: 1. / 3, Depth: 3},
		"{\"rate\": \"20/min\", 'burst': 1}": {Rate: 1. / 3, Burst: 1},
	} {
		l, err := parse(t, "default: "+text).Limits("x")
		require.NoError(t, err)
		require.Equal(t, want, l, text)
	}
}

// The rate of a window depends on the burst and the slack, wherever they stand.
func TestAWindowIsTheSameInBothSpellings(t *testing.T) {
	want, err := shaper.Window(100, time.Minute, 20)
	require.NoError(t, err)
	other := shaper.Limits{Rate: 99. / 62, Slack: 2 * time.Second, Depth: 3}
	for _, text := range []string{
		"default: {rate: 1/s, candidate: 0100\tin  1min burst 20}\nlimits: {a: 100 in 1min depth 3 slack 2s}",
		"%YAML 1.2\n---\ndefault: {rate: 1/s, candidate: {burst: 20, rate: 100 in 1min}}\nlimits: {a: {slack: 2s, rate: 100 in 1min, depth: 3}}",
		"default: {rate: 1/s, candidate: {slack: 0s, rate: \"100 \\tin 1min\", burst: 20}}\nlimits: {a: {rate: 100 in 1min, depth: 3, burst: 0, slack: 2s}}",
	} {
		rules := parse(t, text)
		all := without(rules)
		require.Equal(t, []config.Rule{
			{Limits: shaper.Limits{Rate: 1}, Candidate: &want, CandidateWindow: "100 in 1min"},
			{Key: "a", Limits: other, Window: "100 in 1min"},
		}, all)
		written, err := rules.MarshalText()
		require.NoError(t, err)
		require.Equal(t, "default: {rate: 1/s, depth: 0, candidate: 100 in 1min burst 20 depth 0 slack 20ms}\n"+
			"limits:\n  \"a\": 100 in 1min depth 3 slack 2s\n", string(written))
		require.Equal(t, all, without(parse(t, string(written))))
	}
}

func TestCandidates(t *testing.T) {
	rules := parse(t, example+"  a: {rate: 1/s, candidate: {rate: 2/s, depth: 7}}\n")
	none := shaper.Limits{Rate: rate.Inf}
	for key, want := range map[string]shaper.Limits{
		"api/premium/42": {Rate: 100, Depth: 200},
		"a/b":            {Rate: 2, Depth: 7},
		"api":            none,
		"whatever":       none,
	} {
		l, err := rules.Candidate(key)
		require.NoError(t, err)
		require.Equal(t, want, l, key)
	}
}

// What is missing is an error, never "no limit".
func TestAKeyWithoutARuleIsAnError(t *testing.T) {
	for _, rules := range []*config.Rules{
		parse(t, "limits: {api: 1/s}"), parse(t, "limits: {}"), parse(t, "default: ~"), new(config.Rules),
	} {
		for _, key := range []string{"", "ap", "x/api", strings.Repeat("/", 100)} {
			l, err := rules.Limits(key)
			require.ErrorIs(t, err, config.ErrNoRule)
			require.Error(t, l.Validate(), "limits that nobody can use by mistake")
			_, err = rules.Candidate(key)
			require.ErrorIs(t, err, config.ErrNoRule)
			_, ok := rules.Explain(key)
			require.False(t, ok)
		}
	}
}

// Whoever gets a Rule may write to it.
func TestARuleIsACopy(t *testing.T) {
	rules := parse(t, "default: {rate: 1/s, candidate: 2/s}")
	explained, _ := rules.Explain("x")
	explained.Candidate.Rate = 77
	for rule := range rules.All() {
		rule.Candidate.Rate = 78
	}
	l, err := rules.Candidate("x")
	require.NoError(t, err)
	require.Equal(t, rate.Limit(2), l.Rate)
}

func TestAllStopsWhenTheLoopDoes(t *testing.T) {
	for rule := range parse(t, example).All() {
		require.Empty(t, rule.Key)
		break
	}
}

func TestALookUpAllocatesNothing(t *testing.T) {
	rules := manyRules(t, 1000)
	for _, key := range []string{"r17", "r17/x/192.0.2.1", "no", "r17/" + strings.Repeat("/", 1000), strings.Repeat("x", 1000)} {
		require.Zero(t, testing.AllocsPerRun(100, func() {
			_, _ = rules.Limits(key)
			_, _ = rules.Candidate(key)
		}), key)
	}
}

// A client can send megabytes. The least of several times is taken, because the machine
// may be busy; reading all of these keys takes at least ten times as long as allowed.
func TestALongKeyCostsNoMoreThanAnother(t *testing.T) {
	rules := manyRules(t, 1000)
	for name, key := range map[string]string{
		"one part":            strings.Repeat("x", 1<<24),
		"one part below":      "r17/" + strings.Repeat("x", 1<<24),
		"many parts":          strings.Repeat("x/", 1<<23),
		"many parts below":    "r17/" + strings.Repeat("r17/", 1<<22),
		"many empty parts":    strings.Repeat("/", 1<<24),
		"long part, and more": strings.Repeat("x", 1<<24) + "/r17",
	} {
		least := time.Hour
		for range 10 {
			start := time.Now()
			_, _ = rules.Limits(key)
			least = min(least, time.Since(start))
		}
		require.Less(t, least, 100*time.Microsecond, name)
	}
}

// Join's keys are found under Join's rules, whatever a client sends.
func TestEveryKeyOfJoinCanBeARule(t *testing.T) {
	for _, parts := range [][]string{
		{"api"}, {"api", "premium"}, {""}, {"", ""}, {"-"}, {"--"}, {"a-b", "-"}, {"100%"}, {"a/b", "c"}, {"%2F"}, {"%2D"},
		{"POST /login", "192.0.2.1"}, {"~"}, {"null"}, {"<<"}, {" x "}, {"\"", "'"}, {"\n\t\x00\x7f\u0085\ufeff\u2028é𝄞"}, {"#"}, {"2001:db8::/64"},
		{strings.Repeat("x", 256)}, {strings.Repeat("x", 257)}, {strings.Repeat("%", 256)}, {strings.Repeat("/", 300), "y"},
		{strings.Repeat("k", 255), strings.Repeat("%", 255), strings.Repeat("%", 255)},
	} {
		key := shaper.Join(parts...)
		text := fmt.Sprintf("limits:\n  ? %q\n  : 3/s\n", key)
		rules, err := config.Parse("f", []byte(text))
		require.NoError(t, err, text)
		rule, ok := rules.Explain(key + "/more")
		require.True(t, ok)
		require.Equal(t, key, rule.Key)

		written, err := rules.MarshalText()
		require.NoError(t, err)
		again, err := config.Parse("f", written)
		require.NoError(t, err, "%s", written)
		_, ok = again.Explain(key)
		require.True(t, ok)
	}
}

func TestLayers(t *testing.T) {
	dir := t.TempDir()
	all := write(t, dir, "all.yaml", `
default: 20/s
limits:
  api: {rate: 50/s, depth: 100, wait: 1s, candidate: 10/s}
  api/premium: 200/s
  login: 5/min
`)
	here := write(t, dir, "here.yaml", `
default: ~
limits:
  api: 40/s
  api/premium: ~
  never: ~
  mine: 1/s
`)
	last := write(t, dir, "last.yaml", "limits: {mine: 2/s, login: ~}")
	f, err := config.Open(all, here, last)
	require.NoError(t, err)
	defer f.Close()
	require.Equal(t, []config.Rule{
		{Key: "api", Limits: shaper.Limits{Rate: 40}, File: here, Line: 4},
		{Key: "mine", Limits: shaper.Limits{Rate: 2}, File: last, Line: 1},
	}, slices.Collect(f.Rules().All()))
	rule, ok := f.Rules().Explain("api/premium/42")
	require.True(t, ok)
	require.Equal(t, "api", rule.Key)
	l, err := f.Candidate("api")
	require.NoError(t, err)
	require.Equal(t, rate.Inf, l.Rate, "the candidate of the replaced rule is gone with it")
	_, err = f.Limits("login")
	require.ErrorIs(t, err, config.ErrNoRule)
}

// manyRules returns rules with count keys and some below them.
func manyRules(t testing.TB, count int) *config.Rules { return parse(t, rulesText(count)) }

func rulesText(count int) string {
	var text strings.Builder
	text.WriteString("default: 1/s\nlimits:\n")
	for i := range count {
		fmt.Fprintf(&text, " r%s: 9/s\n", base62(i))
	}
	return text.String()
}

// base62 writes a number in few characters, because 100,000 rules have to fit into 1 MiB.
func base62(i int) string {
	const digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	text := ""
	for {
		text = string(digits[i%62]) + text
		if i /= 62; i == 0 {
			return text
		}
	}
}

func BenchmarkLimits(b *testing.B) {
	for _, count := range []int{10, 95_000} {
		rules := manyRules(b, count)
		one, spread := "r7/192.0.2.1", make([]string, 1024)
		for i := range spread {
			spread[i] = "r" + base62(i*count/len(spread)) + "/192.0.2.1"
		}
		b.Run(fmt.Sprintf("rules=%d/one key", count), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = rules.Limits(one)
			}
		})
		b.Run(fmt.Sprintf("rules=%d/many keys", count), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				_, _ = rules.Limits(spread[i%len(spread)])
			}
		})
		b.Run(fmt.Sprintf("rules=%d/10000 slashes", count), func(b *testing.B) {
			b.ReportAllocs()
			slashes := strings.Repeat("/", 10_000)
			for b.Loop() {
				_, _ = rules.Limits(slashes)
			}
		})
	}
}

// routeOf returns the pattern that a request fits.
func routeOf(t *testing.T, mux *http.ServeMux, method, path string) string {
	t.Helper()
	pattern, err := shaper.ByRoute(mux)(httptest.NewRequestWithContext(t.Context(), method, "http://shop.example"+path, nil))
	require.NoError(t, err)
	return pattern
}

// A rule for a route must meet its requests, without the pattern being written down twice.
func TestRoutesStandInTheKeysOfRules(t *testing.T) {
	rules := parse(t, `
default: 1/s
limits:
  "POST %2Flogin": 1/s
  "%2Forders%2F{id}": 1/s
  "%2Forders%2F{id}/192.0.2.1": 1/s
  "shop.example%2Fcart/-": 1/s
  "-/%2Fsecond": 1/s
  "%2F100%25": 1/s
  api: 1/s
`)
	mux, err := rules.Routes(0, "/given", "POST /login", "/given")
	require.NoError(t, err)
	for _, test := range []struct{ method, path, want string }{
		{"POST", "/login", "POST /login"},
		{"GET", "/login", ""},
		{"GET", "/orders/42", "/orders/{id}"},
		{"GET", "/cart", "shop.example/cart"},
		{"GET", "/given", "/given"},
		{"GET", "/100%25", "/100%"},
		{"GET", "/second", ""}, // It is another part.
		{"GET", "/api", ""},    // It is no pattern.
		{"GET", "/", ""},
	} {
		require.Equal(t, test.want, routeOf(t, mux, test.method, test.path), test.path)
	}

	mux, err = rules.Routes(1)
	require.NoError(t, err)
	require.Equal(t, "/second", routeOf(t, mux, "GET", "/second"))
	require.Empty(t, routeOf(t, mux, "POST", "/login"))

	for _, index := range []int{-1, 2} {
		mux, err = rules.Routes(index, "/given")
		require.NoError(t, err)
		require.Equal(t, "/given", routeOf(t, mux, "GET", "/given"))
		require.Empty(t, routeOf(t, mux, "GET", "/second"))
	}
}

// Keys have the beginning of such a pattern and a hash, which no request's path has.
func TestLongPatternsAreGiven(t *testing.T) {
	long := "/" + strings.Repeat("x", 300)
	rules := parse(t, fmt.Sprintf("limits:\n  %q: 1/s\n", shaper.Join(long)))
	mux, err := rules.Routes(0)
	require.NoError(t, err)
	shortened, err := url.PathUnescape(shaper.Join(long))
	require.NoError(t, err)
	require.Empty(t, routeOf(t, mux, "GET", shortened))
	mux, err = rules.Routes(0, long)
	require.NoError(t, err)
	require.Equal(t, long, routeOf(t, mux, "GET", long))
}

func TestRoutesNeedNoRules(t *testing.T) {
	mux, err := new(config.Rules).Routes(0, "/given")
	require.NoError(t, err)
	require.Equal(t, "/given", routeOf(t, mux, "GET", "/given"))
}

// Whoever writes a wrong pattern must learn where it stands.
func TestAPatternThatCannotBeARouteIsNamed(t *testing.T) {
	rules := parse(t, "limits:\n  \"%2F{a}%2Fb\": 1/s\n  \"%2Fb%2F{a}\": 1/s\n")
	_, err := rules.Routes(0)
	require.EqualError(t, err, `shaper.yaml:2: "%2F{a}%2Fb": "/{a}/b" cannot be a route: pattern "/{a}/b" conflicts with pattern "/b/{a}": `+
		`/{a}/b and /b/{a} both match some paths, like "/b/b". But neither is more specific than the other. `+
		`/{a}/b matches "/a/b", but /b/{a} doesn't. /b/{a} matches "/b/a", but /{a}/b doesn't.`)
	_, err = rules.Routes(1, "api")
	require.EqualError(t, err, `"api" cannot be a route: parsing "api": at offset 0: host/path missing /`)
	_, err = parse(t, "limits:\n  api: 1/s\n  \"%2F{\": 1/s\n").Routes(0)
	require.EqualError(t, err, `shaper.yaml:3: "%2F{": "/{" cannot be a route: parsing "/{": at offset 1: bad wildcard segment (must end with '}')`)
}

package caddyshaper_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/caddyshaper"
)

// Each Caddyfile of testdata has the JSON that it means beside it. SHAPER_UPDATE_GOLDEN=1
// writes that anew.
func TestCaddyfilesMeanWhatTheyMeant(t *testing.T) {
	files, err := filepath.Glob("testdata/*.caddyfile")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			config, err := adapt(string(text))
			require.NoError(t, err)
			var now bytes.Buffer
			require.NoError(t, json.Indent(&now, config, "", "\t"))
			now.WriteByte('\n')
			golden := strings.TrimSuffix(file, "caddyfile") + "json"
			if os.Getenv("SHAPER_UPDATE_GOLDEN") == "1" {
				require.NoError(t, os.WriteFile(golden, now.Bytes(), 0o644))
			}
			was, err := os.ReadFile(golden)
			require.NoError(t, err)
			require.Equal(t, string(was), now.String())
		})
	}
}

func TestAMistakeIsToldWithFileLineAndValue(t *testing.T) {
	for _, c := range []struct{ lines, want string }{
		{"shape {\n limits 5/fortnight\n}", `limits: `},
		{"shape {\n limits 5/fortnight\n}", `at Caddyfile:3`},
		{"shape {\n limits 5/fortnight\n}", `fortnight`},
		{"shape {\n limits 5/s\n site many\n}", `site: `},
		{"shape {\n limits 5/s\n site many\n}", `at Caddyfile:4`},
		{"shape {\n}", `limits: missing`},
		{"shape {\n limits 5/s\n limits 6/s\n}", `limits: it is said twice, at Caddyfile:4`},
		{"shape {\n limit 5/s\n}", `shape has no subdirective "limit", at Caddyfile:3`},
		{"shape {\n limits 5/s\n dry_run yes\n}", `dry_run: takes no word, got 1, at Caddyfile:4`},
		{"shape {\n limits 5/s\n store redis://h\n patience\n}", `patience: takes one word, got 0, at Caddyfile:5`},
		{"shape {\n limits 5/s\n rules\n}", `rules: takes one word or more, got 0, at Caddyfile:4`},
		{"shape {\n limits 5/s\n cost 1 2 3\n}", `cost: takes one word or two, got 3, at Caddyfile:4`},
		{"shape {\n limits 5/s\n store redis://h\n fallback local\n}", `fallback: takes closed, open, or local and a number of processes, got 1, at Caddyfile:5`},
		{"shape {\n limits 5/s\n store redis://h\n fallback open\n patience 2s\n}", `patience: 2s stands beside the fallback open`},
		{"shape {\n limits 5/s\n store redis://h\n patience 0\n fallback local 3\n}", `patience: 0s stands beside the fallback local`},
		{"shape {\n limits 5/s\n rules a.yaml\n}", `limits: "5/s" stands beside rules`},
		{"shape {\n rules a.yaml\n candidate 5/s\n}", `candidate: "5/s" stands beside rules`},
		{"shape {\n limits 5/s\n dry_run\n candidate 5/s\n}", `there can be only one verdict`},
		{"shape {\n limits 5/s\n key route ip\n}", `key: "ip", must be route, client_ip,`},
		{"shape {\n limits 5/s\n key {path\n}", `key: "{path", must be route, client_ip,`},
		{"shape {\n limits 5/s\n cost {header.X-Cost\n}", `cost: "{header.X-Cost", must be a number of at least 1, or a text with a {placeholder}`},
		{"shape {\n limits 5/s\n key header:\n}", `key: "header:", must have the name of a header field`},
		{"shape {\n limits 5/s\n key all host\n}", `"all" stands beside other parts`},
		{"shape {\n limits 5/s\n routes /a\n}", `routes: ["/a"], but no part of the key is route`},
		{"shape {\n limits 5/s\n key route\n routes a\n}", `routes: "a" cannot be a route: `},
		{"shape {\n limits 5/s\n key route\n routes /a/{x} /{y}/b\n}", `routes: "/{y}/b" cannot be a route: pattern "/{y}/b" conflicts with pattern "/a/{x}": `},
		{"shape {\n limits 5/s\n ipv6_bits 129\n}", `ipv6_bits: 129`},
		{"shape {\n limits 5/s\n cost 0\n}", `cost: "0", must be a number of at least 1`},
		{"shape {\n limits 5/s\n cost 2 5\n}", `max_cost: 5, but the cost "2" has no placeholder`},
		{"shape {\n limits 5/s\n fallback open\n}", `fallback: there is no store`},
		{"shape {\n limits 5/s\n rate_version 3\n cold_guard 1s\n fallback open\n}", `fallback: there is no store`}, // at each run
		{"shape {\n limits 5/s\n store redis://h\n fallback maybe\n}", `fallback: "maybe", must be closed, open or local`},
		{"shape {\n limits 5/s\n patience 2s\n}", `patience: there is no store`},
		{"shape {\n limits 5/s\n shared_inflight 20\n}", `shared_inflight: there is no store`},
		{"shape {\n limits 5/s\n site 9/s\n site_shared_inflight 20\n}", `site_shared_inflight: there is no store`},
		{"shape {\n limits 5/s\n store redis://h\n shared_inflight 0\n}", `shared_inflight: "0", must be a number of at least 1, at Caddyfile:5`},
		{"shape {\n limits 5/s\n store redis://h\n shared_inflight -3\n}", `shared_inflight: "-3", must be a number of at least 1`},
		{"shape {\n limits 5/s\n store redis://h\n shared_inflight many\n}", `shared_inflight: "many", must be a number of at least 1`},
		{"shape {\n limits 5/s\n store redis://h\n site_shared_inflight 20\n}", `site_shared_inflight: 20, but there is no site; for the requests of each key say shared_inflight`},
		{"shape {\n quota openai {\n requests 5\n }\n shared_inflight 20\n}", `shared_inflight: it stands beside quota; all calls of a quota have one line`},
		{"shape {\n limits 5/s\n store redis://h\n patience -1s\n}", `patience: "-1s", must be a duration such as 5s, or 0`},
		{"shape {\n limits 5/s\n store redis://h\n patience long\n}", `patience: "long", must be a duration such as 5s, or 0 to wait for as long as it takes, at Caddyfile:5`},
		{"shape {\n limits 5/s\n store redis://h\n patience 9000h\n}", `patience: 9000h0m0s, must be from 0 to 365 days, at Caddyfile:5`},
		{"shape a {\n limits 5/s\n store redis://h\n}\nshape /x a {\n limits 5/s\n store redis://h\n patience 0\n}", `are both called "a", and differ`},
		{"shape {\n limits 5/s\n store redis://h\n dry_run\n}", `store: dry_run can't be combined with a store`},
		{"shape {\n limits inf\n store redis://h\n site inf\n}", `site: "inf" stands beside a store, in which a level needs a rate`},
		{"shape {\n limits inf depth 3\n store redis://h\n fair host\n}", `limits: "inf depth 3" stand beside fair and a store, in which a level needs a rate`},
		{"shape {\n limits 5/s\n store mysql://h\n}", `store: "mysql://h", must begin with redis://`},
		{"shape {\n limits 5/s\n max_keys none\n}", `max_keys: "none", must be a number of at least 1`},
		{"shape {\n limits 5/s\n block -1s\n}", `block: "-1s", must be a duration above 0`},
		{"shape {\n limits 5/s\n block 9000h\n}", `block: 9000h0m0s, must be from 0 to 365 days`},
		{"shape {\n limits 5/s\n line_timeout never\n}", `line_timeout: "never", must be off, or a duration above 0 and up to 365 days, such as 30s, at Caddyfile:4`},
		{"shape {\n limits 5/s\n line_timeout 0\n}", `line_timeout: "0", must be off`},
		{"shape {\n limits 5/s\n line_timeout -1s\n}", `line_timeout: "-1s", must be off`},
		{"shape {\n limits 5/s\n line_timeout 9000h\n}", `line_timeout: "9000h", must be off`},
		{"shape {\n limits 5/s\n verdict_header \"a b\"\n}", `verdict_header: "a b", must be the name`},
		{"shape {\n limits 5/s\n adapt min 1/s\n}", `adapt: there is no line for all requests whose rate could adapt; say fair, or site`},
		{"shape {\n limits 5/s\n site 9/s\n adapt min\n}", `adapt: takes pairs of min, max, start or slow and a value, got 1 words, at Caddyfile:5`},
		{"shape {\n limits 5/s\n site 9/s\n adapt min 1/s min 2/s\n}", `adapt: min is said twice`},
		{"shape {\n limits 5/s\n site 9/s\n adapt least 1/s\n}", `adapt has no word "least"; there are min, max, start and slow`},
		{"shape {\n limits 5/s\n site 9/s\n adapt slow 0s\n}", `adapt: slow is "0s", must be a duration above 0, such as 300ms`},
		{"shape {\n limits 5/s\n site 9/s\n adapt max many\n}", `adapt: the max is "many", must be a rate such as 5/s`},
		{"shape {\n limits 5/s\n site 9/s\n adapt max \"5/s depth 3\"\n}", `adapt: the max is "5/s depth 3", must be a rate such as 5/s`},
		{"shape {\n limits 5/s\n site 9/s\n adapt min 10/s\n}", `adapt: Config.Min is 10, must be at most Max, which is 9`},
		{"shape {\n limits 5/s\n site inf\n adapt min 10/s\n}", `adapt: Config.Max is 0, which means the rate of the Shaper, and that is rate.Inf`},
		{"shape {\n limits 5/s\n site 9/s\n dry_run\n adapt\n}", `adapt: it stands beside dry_run`},
		{"shape {\n limits 5/s\n site 9/s\n store redis://h\n adapt\n}", `adapt: it stands beside store`},
		{"shape {\n quota openai {\n requests 60\n }\n adapt\n}", `adapt: it stands beside quota, whose limits are the provider's`},
		{"shape {\n limits 5/s\n fair\n}", `fair: by is missing; say whose requests take turns, such as client_ip, or name a file by rules that says it`},
		{"shape {\n rules a.yaml\n fair {\n weight a 2\n }\n}", `"weight" stands below a fair without words; the file of rules has the weights then, at Caddyfile:5`},
		{"shape {\n rules a.yaml\n fair\n site 5/s\n}", `site: "5/s" stands beside fair`},
		{"shape {\n limits 5/s\n fair all\n}", `fair: "all" tells no requests apart`},
		{"shape {\n limits 5/s\n fair ip\n}", `fair: "ip", must be route, client_ip,`},
		{"shape {\n limits 5/s\n fair header\n}", `fair: "header", must be route, client_ip,`},
		{"shape {\n limits 5/s\n fair host\n fair host\n}", `fair: it is said twice, at Caddyfile:5`},
		{"shape {\n limits 5/s\n fair host {\n wait a 4\n }\n}", `fair has no subdirective "wait"; there is weight, at Caddyfile:5`},
		{"shape {\n limits 5/s\n fair host {\n weight a\n }\n}", `weight: takes one word for each part of the key, which has 1, and a number, got 1, at Caddyfile:5`},
		{"shape {\n limits 5/s\n fair host client_ip {\n weight a 4\n }\n}", `weight: takes one word for each part of the key, which has 2, and a number, got 2, at Caddyfile:5`},
		{"shape {\n limits 5/s\n fair host {\n weight a 0\n }\n}", `weight: "0", must be a number from 1 to 1000, at Caddyfile:5`},
		{"shape {\n limits 5/s\n fair host {\n weight a 1001\n }\n}", `weight: "1001", must be a number from 1 to 1000`},
		{"shape {\n limits 5/s\n fair host {\n weight a NaN\n }\n}", `weight: "NaN", must be a number`},
		{"shape {\n limits 5/s\n fair host {\n weight a 2\n weight a 3\n }\n}", `weight: the key "a" is said twice, at Caddyfile:6`},
		{"shape {\n limits 5/s\n fair host\n key host\n}", `key: ["host"] stands beside fair`},
		{"shape {\n rules a.yaml\n fair host\n}", `fair: it stands alone beside rules`},
		{"shape {\n limits 5/s\n fair host\n site 5/s\n}", `site: "5/s" stands beside fair`},
		{"shape {\n limits 5/s\n fair host\n candidate 5/s\n}", `candidate: "5/s" stands beside fair`},
		{"shape {\n limits 5/s\n fair host\n dry_run\n}", `dry_run: it stands beside fair`},
		{"shape {\n limits 5/s\n fair host\n block 5s\n}", `block: it stands beside fair`},
		{"shape {\n limits 5/s\n fair host\n max_keys 5\n}", `max_keys: it stands beside fair`},
		{"shape {\n limits 5/s\n fair host\n routes /a\n}", `routes: ["/a"], but no part of the key is route`},
		{"shape a {\n limits 5/s\n fair host\n}\nshape /x a {\n limits 5/s\n fair host {\n weight a 2\n }\n}", `are both called "a", and differ`},
		{"shape limits 1/10s", `limits: shaper: limits "1/10s", column 3: expected a unit: ns us ms s sec min h hour d day; write 1 per 10s, at Caddyfile:2`},
		{"shape {\n limits 5 in 1min burst 5\n}", `limits: shaper: limits "5 in 1min burst 5", column 17: expected a burst below 5, which is how many may leave in 1min, at Caddyfile:3`},
		{"shape {\n limits 5/s\n site 1 in 1min\n}", `site: shaper: limits "1 in 1min", column 1: expected a number of at least 2 before in: write 1 per 61s, at Caddyfile:4`},
		{"shape {\n limits 5/s\n candidate 10, 100 in 1min\n}", `candidate: shaper: limits "10, 100 in 1min", column 9: expected no window in the form "10, 1/s": write 100 in 1min burst 10, at Caddyfile:4`},
		{"shape orders now {\n limits 5/s\n}", `"now" stands after the name`},
		{"shape limits 5/s\nshape limits 6/s", `name: the handlers at Caddyfile:2 and Caddyfile:3 would both be called ":80"`},
		{"shape a limits 5/s\nshape /x a limits 6/s", `name: the handlers at Caddyfile:2 and Caddyfile:3 are both called "a", and differ`},
	} {
		_, err := adapt(":80 {\n" + c.lines + "\n}\n")
		require.ErrorContains(t, err, c.want, "of %s", c.lines)
	}
}

// JSON has what no Caddyfile can say.
func TestMistakesInJSONAreTold(t *testing.T) {
	s := newSite(t)
	for _, c := range []struct{ field, value, want string }{
		{"fair", `{}`, `fair: by is missing`},
		{"fair", `{"by":["all"]}`, `fair: "all" tells no requests apart`},
		{"fair", `{"by":["host"],"weights":{"a":1001}}`, `fair: the weight of "a" is 1001, must be from 1 to 1000`},
		{"fair", `{"by":["host"],"weights":{"a":0}}`, `fair: the weight of "a" is 0, must be from 1 to 1000`},
		{"fair", `{"by":["host"],"weights":{"a/b":2}}`, `fair: the weight of "a/b" is for a key of 2 parts, but each key has 1`},
		{"fair", `{"by":["host"],"weights":{"a":1.5}}`, `weights`},
		{"fair", `{"by":["host"],"weight":{"a":1}}`, `unknown field "weight"`},
		{"fair", `{"by":["header:"]}`, `fair: "header:", must have the name of a header field`},
		{"shared_inflight", `-1`, `shared_inflight: -1, must be from 1 to 2147483647, or 0 for any number`},
		{"site_shared_inflight", `2147483648`, `site_shared_inflight: 2147483648, must be from 1 to 2147483647, or 0 for any number`},
		{"team_inflight", `3`, `team_inflight: it is for a quota, and there is none`},
	} {
		config, err := adapt(s.caddyfile("shape {\n limits 5/s\n store redis://127.0.0.1:1\n}" + proxied))
		require.NoError(t, err)
		var fields any
		require.NoError(t, json.Unmarshal(config, &fields))
		addField(fields, c.field, json.RawMessage(c.value))
		config, err = json.Marshal(fields)
		require.NoError(t, err)
		require.ErrorContains(t, caddy.Load(config, true), c.want, c.value)
	}
}

// addField adds a field to all handlers that have limits.
func addField(in any, name string, value json.RawMessage) {
	switch v := in.(type) {
	case []any:
		for _, one := range v {
			addField(one, name, value)
		}
	case map[string]any:
		if v["limits"] != nil {
			v[name] = value
		}
		for _, one := range v {
			addField(one, name, value)
		}
	}
}

// Where limits stand, the rate may be a window, in quotes or not; and what is promised holds for requests.
func TestTheRateMayBeAWindow(t *testing.T) {
	for _, lines := range []string{
		"shape limits \"100 in 1min burst 20\"", "shape orders limits 100 in 1min burst 20 depth 5",
		"shape {\n limits 100 in 1min\n candidate \"50 in 1min\" slack 1s\n site 1000 in 1h burst 5\n}", "shape {\n limits 100 in 1min burst 20\n fair host\n}",
	} {
		_, err := adapt(":80 {\n" + lines + "\n}\n")
		require.NoError(t, err, lines)
	}
	s := serve(t, "shape limits 3 in 1h burst 2"+proxied)
	for _, want := range []int{200, 200, 429} {
		require.Equal(t, want, s.get("/").status)
	}
}

// A port or a database that no server can have would show only when the first request asks the
// store.
func TestAStoreThatCannotBeIsRefused(t *testing.T) {
	for url, want := range map[string]string{
		"redis://h:99999":                                `"h:99999", the port must be from 1 to 65535`,
		"rediss://h:0":                                   `"h:0", the port must be from 1 to 65535`,
		"redis+cluster://h:99999":                        `"h:99999", the port must be from 1 to 65535`,
		"redis+cluster://h?addr=h2:65536":                `"h2:65536", the port must be from 1 to 65535`,
		"redis+sentinel://h:99999?master_name=m":         `"h:99999", the port must be from 1 to 65535`,
		"redis+sentinel://h?master_name=m&addr=h2:redis": `"h2:redis", the port must be from 1 to 65535`,
		"redis://a,redis://h:99999":                      `"h:99999", the port must be from 1 to 65535`,
		"redis://h/-1":                                   `database "-1", must be a number from 0`,
		"redis://h?db=-2":                                `database "-2", must be a number from 0`,
		"redis+sentinel://h/-1?master_name=m":            `database "-1", must be a number from 0`,
		"redis://a,redis://h/-1":                         `database "-1", must be a number from 0`,
		"redis://h/two":                                  `"two"`,
		"postgres://h:99999/db":                          "port",
		"postgres://user:s3cr%20t@h:5432,i:70000/db":     "port",
		"postgres://h/db?port=0":                         "port",
		"postgres://h/db?sslmode=maybe":                  "sslmode",
		"postgres://h/db?pool_max_conns=none":            "pool_max_conns",
	} {
		_, err := adapt(":80 {\nshape {\n limits 5/s\n store " + url + "\n}\n}\n")
		require.ErrorContains(t, err, "store: ", "of %s", url)
		require.ErrorContains(t, err, want, "of %s", url)
		require.ErrorContains(t, err, "Caddyfile:4", "of %s", url)
		require.NotContains(t, err.Error(), "s3cr", "of %s", url)
	}
	for _, url := range []string{"redis://h:65535", "redis://:6379", "redis://[2001:db8::1]:1", "redis+cluster://h?addr=h2:6379", "redis+sentinel://h?master_name=m&addr=h2:26379"} {
		_, err := adapt(":80 {\nshape {\n limits 5/s\n store " + url + "\n}\n}\n")
		require.NoError(t, err, "of %s", url)
	}
}

func TestAPasswordIsNotTold(t *testing.T) {
	for _, url := range []string{
		"redis://user:s3cr%20t@h:port", "redis://:s3cr%20t@h/a/b", "mysql://user:s3cr%20t@h", "postgres://user:s3cr%20t@h:port/db",
		"redis://:s3cr%20t@h?no_such_option=1", "redis+sentinel://:s3cr%20t@h", "redis://a,redis://:s3cr%20t@h:port",
		"redis://user:s3cr/t@h", "redis://user:1/s3cr@h", "redis://user:s3cr?t@h", "redis://user:s3cr,t@h/a", "redis://user:pass s3cr@h", "redis+sentinel://h?sentinel_password=s3cr%20t", "mysql://h/db?password=s3cr",
	} {
		_, err := adapt(":80 {\nshape {\n limits 5/s\n store " + url + "\n}\n}\n")
		require.ErrorContains(t, err, "store: ", "of %s", url)
		require.NotContains(t, err.Error(), "s3cr", "of %s", url)
	}
}

// logged returns a logger, and a function that returns its lines since it was asked last.
func logged() (log *slog.Logger, lines func() []string) {
	var text lockedText
	plain := &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == slog.MessageKey && strings.HasPrefix(a.Value.String(), "requests") {
			return slog.Attr{}
		}
		return a
	}}
	return slog.New(slog.NewTextHandler(&text, plain)), func() []string {
		text.mu.Lock()
		defer text.mu.Unlock()
		defer text.Reset()
		return slices.Collect(strings.Lines(text.String()))
	}
}

// A lockedText is written by the goroutines of timers.
type lockedText struct {
	mu sync.Mutex
	strings.Builder
}

func (l *lockedText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Builder.Write(p)
}

// Requests that were refused in the last second of an outage were told at the next one, as if they
// had been refused then, and as of the status that came first.
func TestNoRefusalIsToldInTheNextOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, lines := logged()
		note, end := caddyshaper.NewFailureLog(log)
		away, gone := errors.New("away"), errors.New("gone")

		note(503, away)
		require.Equal(t, []string{"status=503 error=away refused=1\n"}, lines())
		for range 700 {
			note(503, away)
		}
		note(503, gone)
		require.Empty(t, lines())
		note(500, away)
		require.Equal(t, []string{"status=500 error=away refused=1\n"}, lines(), "each status has its count")
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, []string{"status=503 error=gone refused=701\n"}, lines())
		note(503, away)
		require.Empty(t, lines(), "there was a line just now")
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, []string{"status=503 error=away refused=1\n"}, lines())

		time.Sleep(time.Hour)
		require.Empty(t, lines())
		note(503, gone)
		require.Equal(t, []string{"status=503 error=gone refused=1\n"}, lines())
		note(503, gone)
		end()
		require.Equal(t, []string{"status=503 error=gone refused=1\n"}, lines(), "a reload loses none")
		time.Sleep(time.Hour)
		require.Empty(t, lines())
	})
}

// go-redis tells of each connection that fails, which are hundreds a second in an outage.
func TestTheClientOfRedisFloodsNoLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, lines := logged()
		printf := caddyshaper.NewRedisLog(log)
		for k := range 5000 { // a millisecond apart
			printf(t.Context(), "dial %d failed", k)
			time.Sleep(time.Millisecond)
		}
		time.Sleep(2 * time.Second)
		all := lines()
		require.LessOrEqual(t, len(all), 7)
		sum := 0
		for _, line := range all {
			var dial, count int
			_, err := fmt.Sscanf(line, `msg="dial %d failed" lines=%d`, &dial, &count)
			require.NoError(t, err)
			sum += count
			require.Equal(t, dial+1, sum, "it is the latest of them")
		}
		require.Equal(t, 5000, sum)
	})
}

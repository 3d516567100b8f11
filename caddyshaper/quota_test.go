package caddyshaper_test

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/caddyshaper"
	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/llm/gateway"
)

// quotaShape is a shape with a quota. The cap keeps those in order who leave shortly one after another.
func quotaShape(quota, more string) string {
	return "shape line {\n quota openai-compatible {\n" + quota + "\n }\n fair header X-Team\n" + more + "\n}" + proxied
}

// records returns the lines of a usage log, once there are so many.
func records(t *testing.T, file string, n int) (all []gateway.Record) {
	t.Helper()
	for _, line := range linesOf(t, file, n) {
		var r gateway.Record
		require.NoError(t, json.Unmarshal([]byte(line), &r), line)
		all = append(all, r)
	}
	return all
}

// A call that is at the provider during a reload settles in the bucket that it has left, and the calls in line are
// re-timed by the quota that has come.
func TestAQuotaChangesWhileCallsWaitAndOneIsUnderWay(t *testing.T) {
	dir := t.TempDir()
	usage := filepath.Join(dir, "first")
	shape := func(requests int, usage string) string {
		return quotaShape(fmt.Sprintf("requests %d\n tokens %d\n burst 1s\n estimate asked", requests, 100*requests), "depth 9\n wait 24h\n inflight 1\n usage "+usage)
	}
	s := serve(t, shape(60, usage))
	done := make(chan bool)
	s.upstream.serves(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/0" {
			<-done
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"usage":{"prompt_tokens":5,"completion_tokens":2}}`)
	})
	first := make(chan answer, 1)
	go func() {
		first <- s.send(http.MethodPost, "/0", strings.NewReader(`{"model":"m","max_tokens":5000}`), "X-Team", "gold")
	}()
	realtime.Until(t, func() bool { return len(s.upstream.arrivals()) == 1 }, "a call is under way")
	reserved := caddyshaper.FairStats("line").Reserved
	require.Positive(t, reserved)
	waiting := s.inLineWith([]string{"X-Team", "batch"}, "line", "/1", "/2", "/3")

	s.reload(shape(6_000_000, filepath.Join(dir, "second")))
	require.Equal(t, 3, caddyshaper.Waiting("line"))
	require.Equal(t, reserved, caddyshaper.FairStats("line").Reserved)
	close(done)
	require.Equal(t, 200, (<-first).status)
	for _, a := range waiting() { // By the old quota they would wait for minutes.
		require.Equal(t, 200, a.status)
		require.Contains(t, a.header.Get("Server-Timing"), "shape;dur=")
		require.Equal(t, "60", a.header.Get("X-Ratelimit-Limit-Requests"))
	}
	require.Zero(t, caddyshaper.FairStats("line").Reserved)
	require.Equal(t, []string{"/0", "/1", "/2", "/3"}, s.upstream.paths())

	told := records(t, usage, 4)
	require.Len(t, told, 4)
	gold := 0
	for _, r := range told { // They are written in any order, as the calls end almost at once.
		require.Equal(t, 200, r.Status)
		if r.Team == "gold" {
			gold++
			require.Equal(t, "m", r.Model)
			require.Equal(t, gateway.Used{Input: 8, Output: 5000}, r.Estimate)
			require.Equal(t, &gateway.Actual{Used: gateway.Used{Input: 5, Output: 2}}, r.Actual)
		}
	}
	require.Equal(t, 1, gold)
}

// The levels of a quota outlive other limits, and other lines. Those of a line without a quota are in other units.
func TestTheLevelsOfAQuotaStay(t *testing.T) {
	s := serve(t, quotaShape("requests 60\n tokens 1000\n estimate asked", ""))
	s.reload(quotaShape("requests 60\n tokens 100000000\n estimate asked", ""))
	a := s.send(http.MethodPost, "/", strings.NewReader(`{"max_tokens":50000000}`))
	require.NoError(t, a.err)
	require.Equal(t, 200, a.status)
	levels := func() (requests, tokens float64) {
		line := caddyshaper.FairLine("line")
		return line.Stats().Level, line.Meters()[0].Level
	}
	for _, c := range []struct{ limit, more string }{
		{"", ""}, {"", "coarse_timer"}, {"output 90000000\n", ""}, {"", ""}, // All but the first make new lines.
	} {
		s.reload(quotaShape("requests 30\n tokens 90000000\n"+c.limit+" estimate asked", c.more))
		requests, tokens := levels()
		require.Greater(t, tokens, 30e6, "of 50,000,000, in 12 s at the most")
		require.Greater(t, requests, 0.0)
	}
	s.reload(quotaShape("tokens 90000000\n estimate asked", ""))
	require.Zero(t, caddyshaper.FairStats("line").Level, "it was of requests")
	s.reload("shape line {\n limits 50/s depth 9\n fair header X-Team\n}" + proxied)
	require.Zero(t, caddyshaper.FairStats("line").Level)
}

// Each model may have a quota and a line of its own, which outlive a reload.
func TestModelsHaveQuotasOfTheirOwn(t *testing.T) {
	usage := filepath.Join(t.TempDir(), "usage.jsonl")
	shape := func(more string) string {
		return "shape line {\n quota anthropic {\n model claude-sonnet-* {\n requests 60\n input 400k\n output 80k\n }\n" +
			"model claude-haiku-* {\n requests 120\n }\n" + more + "estimate 700\n burst 15s\n }\n usage " + usage + "\n}" + proxied
	}
	s := serve(t, shape(""))
	call := func(model string) answer {
		return s.send(http.MethodPost, "/v1/messages", strings.NewReader(fmt.Sprintf(`{"model":%q,"max_tokens":32000}`, model)))
	}
	for range 2 {
		require.Equal(t, 200, call("claude-sonnet-4-5").status)
		require.Equal(t, 200, call("claude-haiku-4-5").status)
		a := call("claude-opus-4")
		require.Equal(t, 404, a.status)
		require.Contains(t, a.body, "it has quotas for claude-sonnet-*, claude-haiku-*")
		s.reload(shape("default {\n requests 5\n }\n"))
		require.Equal(t, 200, call("claude-opus-4").status)
		s.reload(shape(""))
	}
	for name, want := range map[string]struct {
		burst  int
		meters []string
	}{
		"line/claude-sonnet-*": {15, []string{"input-tokens", "output-tokens"}}, "line/claude-haiku-*": {30, []string{"tokens"}}, "line/default": {1, []string{"tokens"}},
	} {
		line := caddyshaper.FairLine(name)
		require.EqualValues(t, 2, line.Stats().Departed, name)
		require.Equal(t, want.burst, line.Limits().Burst, name)
		var meters []string
		for _, m := range line.Meters() {
			meters = append(meters, m.Name)
		}
		require.Equal(t, want.meters, meters, name)
	}
	for _, r := range records(t, usage, 8) {
		if r.Status == 200 {
			require.Equal(t, 700, r.Estimate.Output)
		}
	}
}

// A call without a token of the gateway gets 401, and the token is not seen behind the gateway.
func TestTeamsHaveTokensAndTheProvidersKeyIsTheGateways(t *testing.T) {
	dir := t.TempDir()
	teams, usage := filepath.Join(dir, "teams"), filepath.Join(dir, "usage.jsonl")
	require.NoError(t, os.WriteFile(teams, fmt.Appendf(nil, "gold: %x\n", sha256.Sum256([]byte("secret"))), 0o600))
	s := serve(t, "shape line {\n quota anthropic {\n requests 600\n input 1000000\n }\n teams "+teams+"\n usage "+usage+"\n}\n"+
		"reverse_proxy UPSTREAM {\n header_up X-Api-Key provider\n }")
	seen := make(chan http.Header, 1)
	s.upstream.serves(func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header })
	for _, wrong := range [][]string{nil, {"X-Api-Key", "wrong"}, {"Authorization", "Bearer wrong"}} {
		a := s.get("/v1/messages", wrong...)
		require.Equal(t, 401, a.status)
		require.JSONEq(t, `{"type":"error","error":{"type":"authentication_error","message":"The call has no valid token of the gateway."}}`, a.body)
	}
	require.Equal(t, 200, s.get("/v1/messages", "Authorization", "Bearer secret").status)
	h := <-seen
	require.Equal(t, "provider", h.Get("X-Api-Key"))
	require.Empty(t, h.Get("Authorization"))
	told := records(t, usage, 4)
	require.Equal(t, []int{401, 401, 401, 200}, []int{told[0].Status, told[1].Status, told[2].Status, told[3].Status})
	require.Equal(t, "gold", told[3].Team)
	text, err := os.ReadFile(usage)
	require.NoError(t, err)
	require.NotContains(t, string(text), "secret")
}

// That a provider can't be reached is told in its own format, unless there are error routes for it.
func TestAProviderThatIsNotThere(t *testing.T) {
	usage := filepath.Join(t.TempDir(), "usage.jsonl")
	site := strings.Replace(quotaShape("requests 60", "usage "+usage), "UPSTREAM", "127.0.0.1:1", 1)
	s := serve(t, site)
	a := s.get("/")
	require.Equal(t, 502, a.status)
	require.JSONEq(t, `{"error":{"message":"The provider can't be reached, or did not answer in time.","type":"server_error","param":null,"code":null}}`, a.body)
	require.Equal(t, 502, records(t, usage, 1)[0].Status)
	require.Positive(t, caddyshaper.FairStats("line").Level, "nothing is free")
	s.reload(site + "\nhandle_errors {\n respond \"sorry\" 502\n}")
	a = s.get("/")
	require.Equal(t, "502 sorry", fmt.Sprint(a.status, " ", a.body))
}

// docs/gateway.md tells them, and shapereplay replays under them.
func TestTheDefaultsOfAQuota(t *testing.T) {
	s := serve(t, quotaShape("requests 60", ""))
	require.Equal(t, 200, s.get("/").status)
	l := caddyshaper.FairStats("line").Limits
	require.Equal(t, []any{1000, 2 * time.Minute, 30, 0}, []any{l.Depth, l.MaxWait, l.Burst, l.InFlight}, "half a minute's quota at once")
	s.reload(quotaShape("requests 60\n burst 15s", "depth 7\n wait 3s\n inflight 4"))
	l = caddyshaper.FairStats("line").Limits
	require.Equal(t, []any{7, 3 * time.Second, 15, 4}, []any{l.Depth, l.MaxWait, l.Burst, l.InFlight})
}

// Whoever wants refusals in the log wants those of a quota, too.
func TestRefusalsOfAQuotaAreLogged(t *testing.T) {
	s := serve(t, quotaShape("requests 60\n burst 1s", "wait 1ms\nlog_refusals"))
	require.Equal(t, 200, s.get("/").status)
	require.Equal(t, 429, s.get("/").status)
	realtime.Until(t, func() bool {
		text, _ := os.ReadFile(s.log + ".app")
		return containsAll(string(text), "shaper: refused", `"shape":"line"`)
	}, "the log tells of the refusal")
}

// What a shape may say of refusals holds beside a quota, and only if it is said.
func TestWhatIsSaidOfRefusalsHoldsBesideAQuota(t *testing.T) {
	for more, want := range map[string]struct{ isLogged, isSpread bool }{"": {}, "log_refusals": {isLogged: true}, "retry_spread 1h": {isSpread: true}} {
		s := serve(t, quotaShape("requests 60\n burst 0s", "wait 1ms\n"+more))
		require.Equal(t, 200, s.get("/").status)
		longest := 0
		for range 10 {
			a := s.get("/")
			require.Equal(t, 429, a.status)
			after, err := strconv.Atoi(a.header.Get("Retry-After"))
			require.NoError(t, err)
			ms, err := strconv.Atoi(a.header.Get("Retry-After-Ms"))
			require.NoError(t, err)
			require.LessOrEqual(t, ms, 1000*after, "they say the same")
			require.Greater(t, ms, 1000*(after-1))
			longest = max(longest, after)
		}
		require.Equal(t, want.isSpread, longest > 5, more) // With a spread it is below by a chance of 1 in 10²⁸.
		s.stop()
		text, err := os.ReadFile(s.log + ".app")
		require.NoError(t, err)
		require.Equal(t, want.isLogged, strings.Contains(string(text), "shaper: refused"), more)
	}
}

// Handlers behind the gateway may answer in other ways than a provider does, or not at all.
func TestARecordHasTheStatusThatCaddyAnswersWith(t *testing.T) {
	for behind, status := range map[string]int{"": 200, "error 404": 404, "respond sorry 418": 418} {
		usage := filepath.Join(t.TempDir(), "usage.jsonl")
		s := serve(t, strings.Replace(quotaShape("requests 60", "usage "+usage), strings.TrimSpace(proxied), behind, 1))
		require.Equal(t, status, s.get("/").status)
		require.Equal(t, status, records(t, usage, 1)[0].Status)
	}
}

// The provider's 429 holds the line, and the handlers behind the gateway see the call a second time as it came.
func TestACallIsSentAgainThroughHandlersThatChangeIt(t *testing.T) {
	s := serve(t, "route {\n shape line {\n quota openai {\n requests 600\n }\n}\nuri strip_prefix /openai\nrequest_header X-Added {http.shape.name}"+proxied+"\n}")
	var bodies []string
	s.upstream.serves(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if bodies = append(bodies, r.URL.Path+" "+r.Header.Get("X-Added")+" "+string(body)); len(bodies) == 1 {
			w.Header().Set("Retry-After-Ms", "50")
			w.WriteHeader(429)
		}
	})
	require.Equal(t, 200, s.send(http.MethodPost, "/openai/openai/v1", strings.NewReader("{}")).status)
	require.Equal(t, []string{"/openai/v1 line {}", "/openai/v1 line {}"}, bodies)
}

// The wait before a call is sent again does not use up Caddy's timeout for the answer.
func TestTheTimeUntilACallIsSentAgainIsNotTakenOffTimeouts(t *testing.T) {
	s := newSite(t)
	s.global = "servers {\n timeouts {\n write 1s\n }\n }"
	s.reload(quotaShape("requests 600", ""))
	attempts := 0
	s.upstream.serves(func(w http.ResponseWriter, _ *http.Request) {
		if attempts++; attempts == 1 {
			w.Header().Set("Retry-After-Ms", "1500")
			w.WriteHeader(429)
			return
		}
		_, _ = io.WriteString(w, "fine")
	})
	a := s.send(http.MethodPost, "/v1/x", strings.NewReader("{}"))
	require.NoError(t, a.err)
	require.Equal(t, "200 fine", fmt.Sprint(a.status, " ", a.body))
}

// A gateway reads of the body before the call has a place in line, so the timeout for bodies must hold: the length of
// the line does not bound how many clients send a body slowly.
func TestACallWhoseBodyDoesNotComeEndsWithTheTimeout(t *testing.T) {
	s := newSite(t)
	s.global = "servers {\n timeouts {\n read_body 200ms\n }\n }"
	s.reload(quotaShape("requests 60", ""))
	conn := s.dial()
	_, err := io.WriteString(conn, "POST /v1/x HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 100\r\n\r\n{")
	require.NoError(t, err)
	answered, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	require.Equal(t, 408, answered.StatusCode)
	require.NoError(t, answered.Body.Close())
	require.Zero(t, caddyshaper.FairStats("line").Departed)
}

func TestMistakesOfAQuotaAreTold(t *testing.T) {
	const q = "quota openai {\n requests 5\n }\n"
	for _, c := range []struct{ lines, want string }{
		{"quota openai", `quota: it has no limit`},
		{"quota opnai {\n requests 5\n }", `quota: the provider "opnai" is unknown, must be one of anthropic, bedrock, gemini, openai, openai-compatible`},
		{"quota", `quota: takes one word, got 0, at Caddyfile:3`},
		{"quota openai {\n requests many\n }", `requests: "many", must be a number of at least 1, at Caddyfile:4`},
		{"quota openai {\n requests -5\n }", `requests: "-5", must be a number of at least 1, at Caddyfile:4`},
		{"quota openai {\n requests 5\n tokens\n }", `tokens: takes one word, got 0, at Caddyfile:5`},
		{"quota openai {\n requests 5\n requests 6\n }", `requests: it is said twice, at Caddyfile:5`},
		{"quota openai {\n requests 5\n burst 2m\n }", `burst: "2m", must be a duration from 0 to 1m, such as 30s, at Caddyfile:5`},
		{"quota openai {\n rpm 5\n }", `quota has no subdirective "rpm"; there are requests, tokens, input, output, model, default, estimate, unasked, output_factor, burst and bodies, at Caddyfile:4`},
		{"quota openai {\n requests 5\n estimate much\n }", `estimate: "much", must be learned, asked, or a number of tokens above 0, at Caddyfile:5`},
		{"quota openai {\n requests 5\n unasked -1\n }", `unasked: "-1", must be a number of at least 1, at Caddyfile:5`},
		{"quota openai {\n requests 5\n output_factor 5\n }", `output_factor: 5, must not be negative, and is for bedrock alone`},
		{"quota bedrock {\n requests 5\n output_factor many\n }", `output_factor: "many", must be a number of at least 1, at Caddyfile:5`},
		{"quota openai {\n requests 5\n model m {\n requests 6\n }\n }", `quota: limits stand beside models; put them into default`},
		{"quota openai {\n model {\n requests 6\n }\n }", `model: it is a pattern of models and a block`},
		{"quota openai {\n default m {\n requests 6\n }\n }", `default: it is a pattern of models and a block`},
		{"quota openai {\n model m {\n }\n }", `quota: the model "m" has no limit`},
		{"quota openai {\n model m {\n burst 6\n }\n }", `the quota of a model has no subdirective "burst"; there are requests, tokens, input and output, at Caddyfile:5`},
		{"quota openai {\n model m {\n requests 6k6\n }\n }", `requests: "6k6", must be a number of at least 1, at Caddyfile:5`},
		{"quota openai {\n model m {\n requests 6\n requests 7\n }\n }", `requests: it is said twice, at Caddyfile:6`},
		{"quota openai {\n model m {\n requests 6\n }\n model m {\n requests 6\n }\n }", `quota: the model "m" is said twice`},
		{"quota openai {\n default {\n requests 6\n }\n default {\n requests 6\n }\n }", `quota: the model "default" is said twice`},
		{"quota openai {\n model default {\n requests 6\n }\n default {\n requests 7\n }\n }", `quota: the model "default" is said twice`},
		{"quota openai {\n requests 5\n bodies many\n }", `bodies: "many", must be a size above 0, such as 64MiB, at Caddyfile:5`},
		{"quota openai {\n requests 5\n bodies 0\n }", `bodies: "0", must be a size above 0, such as 64MiB, at Caddyfile:5`},
		{"quota openai {\n requests 5\n bodies 1MiB\n bodies 2MiB\n }", `bodies: it is said twice, at Caddyfile:6`},
		{q + q, `quota: it is said twice`},
		{q + "depth 0", `depth: "0", must be a number of at least 1`},
		{q + "wait never", `wait: "never", must be a duration above 0`},
		{q + "inflight 1.5", `inflight: "1.5", must be a number of at least 1`},
		{q + "team_inflight 0", `team_inflight: "0", must be a number of at least 1`},
		{"limits 5/s\n team_inflight 5", `team_inflight: it is for a quota, and there is none`},
		{q + "team_metrics", `team_metrics: takes one word, got 0`},
		{q + "fair team", `fair: "team" is the owner of a token, and teams names no file of them`},
		{q + "fair header Authorization", `fair: "header:Authorization" would show keys in metrics and logs`},
		{q + "fair {query.key}", `fair: "{http.request.uri.query.key}" would show keys in metrics and logs`},
		{q + "fair {header.X-Api-Key}", `fair: "{http.request.header.X-Api-Key}" would show keys in metrics and logs`},
		{"limits 5/s\n depth 5", `depth: it is for a quota, and there is none`},
		{"limits 5/s\n usage stdout", `usage: it is for a quota, and there is none`},
		{"limits 5/s\n fair team", `fair: "team"`},
		{q + "limits 5/s", `limits: it stands beside quota; the quota says how much may pass`},
		{q + "rules f", `rules: it stands beside quota`},
		{q + "site 5/s", `site: it stands beside quota`},
		{q + "key host", `key: it stands beside quota; all calls share one quota`},
		{q + "cost 5", `cost: it stands beside quota; the cost of a call is its share of the quota`},
		{q + "skip preflight", `skip: it stands beside quota; each call needs its token`},
		{"limits 5/s\n skip options", `skip: "options", must be preflight`},
		{q + "candidate 5/s", `candidate: it stands beside quota; in a dry run no call waits`},
		{q + "dry_run", `dry_run: it stands beside quota`},
		{q + "store redis://h", `advertise: missing; say at which host and port the other replicas reach this one`},
		{q + "store http://h\n advertise h:1", `store: "http://h", must begin with redis://`},
		{q + "store redis://h\n advertise", `advertise: takes one word, got 0`},
		{q + "store redis://h\n advertise h", `advertise: "h", must be a host and a port, such as 10.0.0.5:8080 or [fd00::5]:8080, at Caddyfile:7`},
		{q + "store redis://h\n advertise :8080", `advertise: ":8080", must be a host and a port`},
		{q + "store redis://h\n advertise h:0", `advertise: "h:0", must be a host and a port`},
		{q + "store redis://h\n advertise http://h:8080", `advertise: "http://h:8080", must be a host and a port`},
		{q + "store redis://h\n advertise 0.0.0.0:8080", `advertise: "0.0.0.0:8080" is no address that the other replicas could call; give one of this machine, such as 10.0.0.5:8080`},
		{q + "store redis://h\n advertise [::]:8080", `advertise: "[::]:8080" is no address that the other replicas could call`},
		{q + "store redis://h\n advertise h:1\n fallback open", `fallback: open stands beside quota, of which each replica would take all`},
		{q + "store redis://h\n advertise h:1\n fallback local", `fallback: takes closed, open, or local and a number of processes, got 1`},
		{q + "store redis://h\n advertise h:1\n patience 1s", `patience: it stands beside quota; wait says for how long a call waits`},
		{q + "store redis://h\n advertise h:1\n cold_guard 1s", `cold_guard: it stands beside quota`},
		{q + "store redis://h\n advertise h:1\n rate_version 1", `rate_version: it stands beside quota`},
		{q + "advertise h:1", `advertise: there is no store that it could be for`},
		{q + "fallback local 3", `fallback: there is no store that it could be for`},
		{"limits 5/s\n store redis://h\n advertise h:1", `advertise: it is for a quota, and there is none`},
		{q + "block 1s", `block: it stands beside quota`},
		{q + "max_keys 5", `max_keys: it stands beside quota`},
		{q + "ratelimit_headers", `ratelimit_headers: it stands beside quota`},
		{q + "x_ratelimit_headers", `x_ratelimit_headers: it stands beside quota`},
		{q + "server_timing", `server_timing: it stands beside quota`},
	} {
		_, err := adapt("http://shop.example\nshape {\n " + c.lines + "\n}")
		require.ErrorContains(t, err, c.want, c.lines)
	}
	s := newSite(t)
	require.ErrorContains(t, s.load(quotaShape("requests 5", "teams /nowhere/teams")), "teams: stat /nowhere/teams: no such file")
	require.ErrorContains(t, s.load(quotaShape("requests 5", "usage /dev/null/usage")), "usage: ")
	config, err := adapt(s.caddyfile(quotaShape("requests 5", "")))
	require.NoError(t, err)
	for was, is := range map[string][2]string{
		`"requests":5`:                   {`"requests":-5`, `requests: -5, must not be negative`},
		`"by":["header:X-Team"]`:         {`"by":["all"]`, `fair: "all" tells no requests apart`},
		`"provider":"openai-compatible"`: {`"burst":-1,"provider":"openai"`, `burst: -1ns, must be from 0s to 1m`},
		`"requests":5}`:                  {`"requests":5,"bodies":-1}`, `bodies: -1, must not be negative`},
	} {
		require.ErrorContains(t, caddy.Load([]byte(strings.Replace(string(config), was, is[0], 1)), true), is[1])
	}
}

// fullDisk is a file on a disk that is full for a while.
type fullDisk struct {
	bytes.Buffer
	room []int // for each write
}

func (f *fullDisk) Write(p []byte) (n int, err error) {
	n = min(f.room[0], len(p))
	if f.room = f.room[1:]; n < len(p) {
		err = syscall.ENOSPC
	}
	_, _ = f.Buffer.Write(p[:n]) // It never fails.
	return n, err
}

func (*fullDisk) Close() error { return nil }

// A line of which a full disk has taken a part spoils no other.
func TestALineThatIsCutOffSpoilsNoOther(t *testing.T) {
	f := &fullDisk{room: []int{9, 2, 0, 9, 9}}
	require.Equal(t, 3, caddyshaper.WriteUsage(f, "one", "two", "three", "four", "five"))
	require.Equal(t, "one\ntw\nfour\nfive\n", f.String())
}

// slowDisk is a file on a disk that takes a line whenever it is let.
type slowDisk struct {
	bytes.Buffer
	let chan bool
}

func (f *slowDisk) Write(p []byte) (n int, err error) {
	<-f.let
	return f.Buffer.Write(p)
}

func (*slowDisk) Close() error { return nil }

// A call ends while the disk is slow or hangs. The lines wait for it in their order; those that would take too much memory are lost, and
// the call is told, which notes it.
func TestASlowDiskHoldsUpNoCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &slowDisk{let: make(chan bool)}
		add, end := caddyshaper.NewUsage(disk)
		want := ""
		for i := range 3 {
			require.NoError(t, add(fmt.Sprint(i)))
			want += fmt.Sprintln(i)
		}
		large := strings.Repeat("x", caddyshaper.MostUnwritten-2*3-1)
		require.NoError(t, add(large))
		require.ErrorContains(t, add(""), "the disk is too slow")
		disk.let <- true
		disk.let <- true
		synctest.Wait()
		require.Equal(t, want[:4], disk.String())
		ended := make(chan error)
		go func() { ended <- end() }()
		synctest.Wait()
		go func() { require.NoError(t, add("late")) }() // It is written at once.
		close(disk.let)
		require.NoError(t, <-ended)
		synctest.Wait()
		require.Len(t, disk.String(), len(want+large+"\nlate\n"))
		require.Equal(t, want, disk.String()[:6])
	})
}

// Caddy runs one route of a group for a request, so that a second attempt would meet none.
func TestACallIsSentAgainThroughTheRoutesOfAGroup(t *testing.T) {
	for name, behind := range map[string]string{"handle": "handle /v1/* {" + proxied + "\n}\nhandle {\n respond other 404\n}", "handle_path": "handle_path /v1/* {" + proxied + "\n}", "two rewrites": "rewrite /a /b\nrewrite /v1/x /v1/y\n" + proxied} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, strings.Replace(quotaShape("requests 600", ""), strings.TrimSpace(proxied), behind, 1))
			n := 0
			s.upstream.serves(func(w http.ResponseWriter, r *http.Request) {
				if n++; n == 1 {
					w.Header().Set("Retry-After-Ms", "50")
					w.WriteHeader(429)
					return
				}
				_, _ = io.WriteString(w, "fine")
			})
			a := s.send(http.MethodPost, "/v1/x", strings.NewReader("{}"))
			require.Equal(t, "fine", a.body)
		})
	}
}

// The second attempt is rewritten as the first one was.
func TestACallIsRewrittenAgain(t *testing.T) {
	s := serve(t, "route {\n shape line {\n quota openai {\n requests 600\n }\n}\nrewrite * /v1{uri}"+proxied+"\n}")
	var got []string
	s.upstream.serves(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if got = append(got, r.URL.Path+" "+string(body)); len(got) == 1 {
			w.Header().Set("Retry-After-Ms", "50")
			w.WriteHeader(429)
		}
	})
	s.send(http.MethodPost, "/chat", strings.NewReader("{}"))
	require.Equal(t, []string{"/v1/chat {}", "/v1/chat {}"}, got)
}

// Placeholders read the request that Caddy has made, so the handlers behind a quota must get that.
func TestTheBodyIsReadByAPlaceholderBehindAQuota(t *testing.T) {
	s := serve(t, "route {\n shape line {\n quota openai {\n requests 600\n }\n}\nrequest_header X-Body {http.request.body}"+proxied+"\n}")
	var got string
	s.upstream.serves(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = r.Header.Get("X-Body") + " | " + string(body)
	})
	a := s.send(http.MethodPost, "/chat", strings.NewReader("{}"))
	require.Equal(t, "{} | {}", got, a.status)
}

func TestTheMethodIsReadByAPlaceholderBehindAQuota(t *testing.T) {
	s := serve(t, "route {\n shape line {\n quota openai {\n requests 600\n }\n}\nmethod PUT\nrequest_header X-Method {http.request.method}"+proxied+"\n}")
	var got string
	s.upstream.serves(func(w http.ResponseWriter, r *http.Request) {
		got = r.Method + " " + r.Header.Get("X-Method")
	})
	a := s.send(http.MethodPost, "/chat", strings.NewReader("{}"))
	require.Equal(t, "PUT PUT", got, a.status)
}

// Another quota that comes to the same limits leaves none of an operator's in force for good.
func TestAReloadOfAQuotaMakesNoChangePermanent(t *testing.T) {
	for name, q := range map[string][2]string{
		"bodies":       {"tokens 1000000", "tokens 1000000\n bodies 32MiB"},
		"second limit": {"tokens 1000000", "tokens 1000000\n requests 500"},
		"proportional": {"tokens 1000000", "tokens 2000000"},
	} {
		t.Run(name, func(t *testing.T) {
			shape := func(q string) string { return quotaShape(q, "") + controlled }
			s := serve(t, shape(q[0]))
			s.change("limits", map[string]string{"source": "line", "limits": "1000/s burst 50000 depth 9 wait 1min", "for": "2s"})
			s.reload(shape(q[1]))
			time.Sleep(2500 * time.Millisecond)
			require.NotEqual(t, "1000/s burst 50000 depth 9 wait 1min", caddyshaper.InForce("line", ""))
		})
	}
}

// A hold goes to the lines that take the place of those that were held, and is told.
func TestAHoldIsToldOfTheLinesThatAReloadHasMade(t *testing.T) {
	for _, more := range []string{"50/s depth 5 inflight 3", "60/s depth 5"} {
		shape := func(limits string) string {
			return "shape line {\nlimits " + limits + "\nfair host\nstate " + filepath.Join(t.TempDir(), "s") + "\n}" + controlled + proxied
		}
		s := serve(t, shape("50/s depth 5"))
		s.change("hold", map[string]string{"source": "line", "for": "10m"})
		s.reload(shape(more))
		in, _ := s.changes()
		require.Equal(t, !caddyshaper.FairStats("line").HeldUntil.IsZero(), len(in) > 0, more)
	}
}

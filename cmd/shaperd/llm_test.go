package main_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

func TestMistakesInFlagsOfTheGatewayAreNamed(t *testing.T) {
	t.Setenv("AN_EMPTY_KEY", "")
	quota := []string{"llm", "--requests", "500"}
	folder := t.TempDir()
	for want, args := range map[string][]string{
		`the quota is missing: say --requests`:                                 {"llm"},
		`--provider: "closedai", must be one of anthropic, bedrock`:            {"--provider", "closedai"},
		`--upstream: it is missing; with the provider "bedrock"`:               {"--provider", "bedrock"},
		`--upstream: "ftp://x", must be a URL such as`:                         {"--upstream", "ftp://x"},
		`--upstream: "https://x/v1", must be a scheme and a host`:              {"--upstream", "https://x/v1"},
		`--tokens: -1, must not be negative`:                                   {"--tokens=-1"},
		`invalid argument "many" for "--depth" flag`:                           {"--depth", "many"},
		`--burst: 2m0s, must be from 0s to 1m`:                                 {"--burst", "2m"},
		`--wait: 0s, must be above 0`:                                          {"--wait", "0s"},
		`--fair: "X-Team", must be header:NAME`:                                {"--fair", "X-Team"},
		`--fair: "team", but without --teams`:                                  {"--fair", "team"},
		`--fair: "none", but with --teams the teams take turns`:                {"--fair", "none", "--teams", "f", "--key-env", "HOME"},
		`--weights: "gold", must be a team, = and a number`:                    {"--weights", "gold"},
		`--weights: "gold=0", must be a number from 1 to 1000`:                 {"--weights", "gold=0"},
		`--weights: "=4", must name teams, each in one line`:                   {"--weights", "=4"},
		`--weights: the team "a" is said twice`:                                {"--weights", "a=1,a=2"},
		`--weights: "a=2", but with --fair none`:                               {"--weights", "a=2", "--fair", "none"},
		`--teams: "f", but without --key-env`:                                  {"--teams", "f"},
		`--key-env: "K", but without --teams anybody could use the key`:        {"--key-env", "K"},
		`--key-env: "a=b", must be the name of an environment variable`:        {"--key-env", "a=b", "--teams", "f"},
		`--key-env: "NO_SUCH_KEY", but there is no such environment variable`:  {"--key-env", "NO_SUCH_KEY", "--teams", "f"},
		`--listen: "8080", must be an address and a port`:                      {"--listen", "8080"},
		`--page: "127.0.0.1:0", must be an address and a port`:                 {"--page", "127.0.0.1:0"},
		`--page: "127.0.0.1:8080", must not be the address of --listen`:        {"--page", "127.0.0.1:8080"},
		`--page: "127.0.0.1:8081", must not be the address of --listen`:        {"--listen", ":8081"},
		`--page: "[::]:8080", must not be the address of --listen`:             {"--page", "[::]:8080"},
		`--bodies: 0, must be from 1 to 1048576 MiB`:                           {"--bodies", "0"},
		`--depth: 0, must be at least 1`:                                       {"--depth", "0"},
		`"30s": the command takes flags alone; an interval of --keepalive`:     {"--keepalive", "30s"},
		`--key-env: "AN_EMPTY_KEY", but there is no such`:                      {"--key-env", "AN_EMPTY_KEY", "--teams", "f"},
		`invalid argument "1ms" for "--keepalive" flag: must be at least 1s`:   {"--keepalive=1ms"},
		`--quota: it stands beside --requests`:                                 {"--quota", "m: 5 in"},
		`--quota: "5 in", must be a pattern of models, a colon and limits`:     {"--quota", "5 in"},
		`--quota: "m: 6 in" has the models of another one`:                     {"--quota", "m: 5 in", "--quota", "m: 6 in"},
		`--estimate: "much", must be learned, asked, or a number of tokens`:    {"--estimate", "much"},
		`--output-factor: 5, must not be negative, and is for bedrock alone`:   {"--output-factor", "5"},
		`--unasked: -1, must not be negative`:                                  {"--unasked", "-1"},
		`--team-inflight: -1, must not be negative`:                            {"--team-inflight", "-1"},
		`invalid argument "soon" for "--burst" flag`:                           {"--burst", "soon"},
		`invalid argument "" for "--quota" flag: must be a pattern of models`:  {"--quota", ""},
		`--quota: " : 5 in", must be a pattern of models, a colon and limits`:  {"--quota", " : 5 in"},
		`--quota: "5x", must be a whole number`:                                {"--quota", "m: 5x in"},
		`--advertise: "h:1", but without --store there are no other replicas`:  {"--advertise", "h:1"},
		`--store-fallback: 3, but without --store there are no other`:          {"--store-fallback", "3"},
		`--store: "http://h", must begin with redis://`:                        {"--store", "http://h"},
		`--store-fallback: -1, must not be negative`:                           {"--store", "redis://h", "--store-fallback", "-1"},
		`no other machine reaches --listen 127.0.0.1:8080; say --listen :8080`: {"--store", "redis://h"},
		`or --advertise localhost:8080, if all replicas are on this one`:       {"--store", "redis://h", "--listen", "localhost:8080"},
		`--advertise: "h", must be a host and a port`:                          {"--store", "redis://h", "--advertise", "h"},
		`--advertise: "h:99999", must be a host and a port`:                    {"--store", "redis://h", "--advertise", "h:99999"},
		`--advertise: "0.0.0.0:1" is no address that the other replicas`:       {"--store", "redis://h", "--advertise", "0.0.0.0:1"},
		`--name: "/x", must not begin with /, @ or *`:                          {"--name", "/x"},
		`--state: "/proc/levels.json": open /proc/`:                            {"--state", "/proc/levels.json"},
		fmt.Sprintf("--state: %q: read %[1]s: is a directory", folder):         {"--state", folder},
		`--state: "/dev/null/levels.json": mkdir /dev/null: not a directory`:   {"--state", "/dev/null/levels.json"},
		`--upstream: "http://x", but the provider of the demonstration`:        {"--demo", "--upstream", "http://x"},
	} {
		t.Run(want, func(t *testing.T) {
			if args[0] != "llm" {
				args = append(quota[:3:3], args...)
			}
			status, text := do(t, args...)
			require.Equal(t, 1, status)
			require.Regexp(t, "^(shaperd llm|Error): ", text)
			require.Contains(t, text, want)
		})
	}
}

const printedCaddyfile = `{
	auto_https off
	grace_period 1m # for calls that wait or run, when the server is told to end
	log {
		format filter {
			request>headers>Api-Key delete
			request>headers>X-Api-Key delete
			request>headers>X-Goog-Api-Key delete
			request>uri query {
				delete key
			}
		}
	}
	servers {
		timeouts {
			read_body_idle 20s 10000
			write_idle 20s
		}
		keepalive_interval 15s
	}
}

http://:8080 {
	bind 127.0.0.1
	shape_healthy /-/healthy
	shape_ready /-/ready
	shape openai {
		quota openai {
			requests 500
			tokens 90000
			burst 30s
		}
		depth 1000
		wait 2m
		fair header X-Team {
			weight batch 1
			weight gold 4
		}
	}
	reverse_proxy https://api.openai.com {
		header_up Host {upstream_hostport}
		header_up -X-Forwarded-* # The provider need not know who calls.
		header_up -Via
	}
}

http://:8081 {
	bind 127.0.0.1
	handle /metrics {
		metrics
	}
	handle {
		shape_inspect {
			title ` + "`shaperd llm: openai`" + `
		}
	}
}
`

func TestTheCaddyfileOfTheGatewayIsPrinted(t *testing.T) {
	status, text := do(t, "llm", "--upstream", "https://api.openai.com", "--provider", "openai", "--requests", "500", "--tokens", "90000",
		"--fair", "header:X-Team", "--weights", "gold=4,batch=1", "--print")
	require.Zero(t, status)
	require.Equal(t, printedCaddyfile, text)

	teams := writeFile(t, "teams of all", "gold: "+hashOf("g")+"\n")
	status, text = do(t, "llm", "--provider", "anthropic", "--requests", "50", "--input", "30000", "--output", "8000", "--burst", "0s",
		"--depth", "10", "--bodies", "256", "--wait", "90s", "--inflight", "4", "--weights", "a team=2", "--key-env", "HOME", "--teams", teams,
		"--usage", filepath.Join(t.TempDir(), "usage.json"), "--team-metrics", "5", "--keepalive=30s", "--listen", ":8080", "--page", "off", "--print")
	require.Zero(t, status, text)
	status, models := do(t, "llm", "--provider", "bedrock", "--upstream", "https://api.example", "--quota", "anthropic.claude-*: 250 requests, 400k tokens", "--quota", "default: 5 requests",
		"--estimate", "asked", "--unasked", "4000", "--output-factor", "5", "--team-inflight", "3", "--state", filepath.Join(t.TempDir(), "state"), "--print")
	require.Zero(t, status, models)
	require.Contains(t, models, "\t\t\tmodel anthropic.claude-* {\n\t\t\t\trequests 250\n\t\t\t\ttokens 400000\n\t\t\t}\n\t\t\tdefault {\n\t\t\t\trequests 5\n\t\t\t}\n"+
		"\t\t\testimate asked\n\t\t\tunasked 4000\n\t\t\toutput_factor 5\n\t\t\tburst 50s\n")
	require.Contains(t, models, "team_inflight 3\n")
	status, replica := do(t, "llm", "--requests", "500", "--listen", ":8080", "--page", "off", "--name", "a name", "--store", "redis://:{env.A_PASSWORD}@127.0.0.1:1",
		"--advertise", "[fd00::5]:8080", "--store-fallback", "3", "--print")
	require.Zero(t, status, replica)
	require.Contains(t, replica, "\tshape `a name` {\n")
	require.Contains(t, replica, "\t\tstore `redis://:{env.A_PASSWORD}@127.0.0.1:1`\n\t\tadvertise [fd00::5]:8080\n\t\tfallback local 3\n")
	t.Setenv("A_PASSWORD", "secret")
	for listen, advertised := range map[string]string{"10.0.0.5:8080": `advertise 10\.0\.0\.5:8080`, ":8080": `advertise \S+:8080`} {
		status, text := do(t, "llm", "--requests", "500", "--listen", listen, "--page", "off", "--store", "postgres://h/d", "--print")
		require.Zero(t, status, text)
		require.Regexp(t, advertised, text)
		require.NotRegexp(t, `advertise (127\.|\[?::|0\.)`, text)
	}
	for _, file := range []string{printedCaddyfile, text, models, replica} {
		path := writeFile(t, "Caddyfile", file)
		status, told := do(t, "validate", "--config", path)
		require.Zero(t, status, told)
		status, formatted := do(t, "fmt", path)
		require.Zero(t, status)
		require.Equal(t, file, formatted)
	}
	require.Contains(t, text, "wait 1m30s\n")
	require.Contains(t, text, "\t\t\tbodies 256MiB\n")
	require.Contains(t, text, "keepalive_interval 30s\n")
	require.Contains(t, text, "fair team {\n\t\t\tweight `a team` 2\n")
}

// hashOf returns the SHA-256 of a token, as a file of teams has it.
func hashOf(token string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(token))) }

func TestTheGatewayPutsTheKeyInPlaceOfATeamsToken(t *testing.T) {
	var keys []string
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys = append(keys, r.Header.Get("Authorization"))
		fmt.Fprint(w, `{"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}`)
	}))
	defer upstream.Close()
	t.Setenv("A_KEY", "the key")
	teams := writeFile(t, "teams", "gold: "+hashOf("a token")+"\n")
	usage := filepath.Join(t.TempDir(), "usage.json")
	listen, page := freeAddress(t), freeAddress(t)
	p := start(t, "llm", "--upstream", upstream.URL, "--provider", "openai-compatible", "--tokens", "90000", "--key-env", "A_KEY", "--teams", teams,
		"--listen", listen, "--page", page, "--usage", usage, "--team-metrics", "3")
	p.Says("take turns")

	body := `{"model":"m-1","max_tokens":50,"messages":[{"role":"user","content":"a prompt"}]}`
	a, err := send(http.MethodPost, "http://"+listen+"/v1/chat/completions", body, "Authorization", "Bearer a token", "Content-Type", "application/json")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, a.status)
	require.Equal(t, []string{"Bearer the key"}, keys)

	require.Contains(t, mustGet(t, "http://"+page).body, "<table")
	require.Contains(t, mustGet(t, "http://"+page+"/metrics").body, `team="gold"`)

	require.Zero(t, p.Stop(syscall.SIGINT))
	text, err := os.ReadFile(usage)
	require.NoError(t, err)
	require.Contains(t, string(text), `"team":"gold"`)
	for _, secret := range []string{"a prompt", "a token", "the key"} {
		require.NotContains(t, string(text)+p.Output(), secret)
	}
}

// What has left before a restart counts after it, and a gateway at another address has levels of its own.
func TestTheLevelsOfAGatewayOutliveARestart(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") }))
	defer upstream.Close()
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	named := filepath.Join(t.TempDir(), "folder", "state.json")
	for _, c := range []struct {
		state []string
		keeps bool
	}{{nil, true}, {[]string{"--state", named}, true}, {[]string{"--state", "off"}, false}} {
		listen, answered := freeAddress(t), 0
		for range 2 {
			p := start(t, append([]string{"llm", "--upstream", upstream.URL, "--requests", "60", "--wait", "1ms", "--listen", listen, "--page", "off"}, c.state...)...)
			p.Says("take turns")
			for range 31 {
				a, err := send(http.MethodPost, "http://"+listen+"/v1/chat/completions", `{"model":"m","max_tokens":5}`)
				require.NoError(t, err)
				if a.status == 200 {
					answered++
				}
			}
			require.Zero(t, p.Stop(syscall.SIGTERM))
		}
		if c.keeps {
			require.Less(t, answered, 50, "30 at once, and one a second")
		} else {
			require.GreaterOrEqual(t, answered, 60)
		}
	}
	require.FileExists(t, named)
}

// A provider gets what its own client would send. Load balancers ask the gateway, and not the provider, how it is.
func TestTheProviderIsToldNothingThatConcernsTheGatewayAlone(t *testing.T) {
	var came http.Header
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { came = r.Header }))
	defer upstream.Close()
	for _, c := range []struct {
		args []string
		want []string // of what follows
	}{{nil, nil}, {[]string{"--forwarded"}, []string{"Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"}}} {
		listen := freeAddress(t)
		p := start(t, append([]string{"llm", "--upstream", upstream.URL, "--requests", "600", "--listen", listen, "--page", "off"}, c.args...)...)
		p.Says("take turns")
		for _, path := range []string{"/-/healthy", "/-/ready"} {
			a := mustGet(t, "http://"+listen+path)
			require.Equal(t, 200, a.status)
			require.Contains(t, a.body, path[3:])
			require.Nil(t, came)
		}
		_, err := send(http.MethodGet, "http://"+listen+"/v1/models", "", "X-Team", "gold", "X-Own", "yes")
		require.NoError(t, err)
		require.Equal(t, "yes", came.Get("X-Own"))
		var told []string
		for _, name := range []string{"Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Team"} {
			if came.Get(name) != "" {
				told = append(told, name)
			}
		}
		require.Equal(t, c.want, told)
		came = nil
		require.Zero(t, p.Stop(syscall.SIGINT))
	}
}

// A name may have any letters. What Caddy reads must not be another, such as a secret of the environment that a name asks for.
func TestNamesOfTheGatewayAreReadAsTheyAre(t *testing.T) {
	t.Setenv("A_SECRET", "secret")
	names := []string{"{$A_SECRET}", "{$A_SECRET:x}", "{${$A_SECRET}}", "{env.A_SECRET}", "{path}", "{header.A}", "{", "}", "{}", `{\}`, "a b", "a`b", `a"b`, `a\b`, `\`, "<<A", "#a", "-", "{$", "{$}"}
	flags := []string{"llm", "--upstream", "http://127.0.0.1:1", "--requests", "5"}
	var weights []string
	for i, name := range names {
		weights = append(weights, fmt.Sprintf("%s=%d", name, i+2))
	}
	status, printed := do(t, append(flags, "--weights", strings.Join(weights, ","), "--print")...)
	require.Zero(t, status, printed)
	file := writeFile(t, "Caddyfile", printed)
	status, adapted := do(t, "adapt", "--config", file)
	require.Zero(t, status, adapted)
	require.NotContains(t, adapted, "secret")
	var config any
	_, text, _ := strings.Cut(adapted, "{") // behind a line of the log, if there is one
	require.NoError(t, json.NewDecoder(strings.NewReader("{"+text)).Decode(&config))
	for i, name := range names {
		require.InDelta(t, i+2, weightsIn(config)[shaper.Join(name)], 0, name)
	}
	require.Len(t, weightsIn(config), len(names))
	status, formatted := do(t, "fmt", file)
	require.Zero(t, status)
	require.Equal(t, printed, formatted)

	dir := filepath.Join(t.TempDir(), "{$A_SECRET} {env.A_SECRET} {path}")
	require.NoError(t, os.Mkdir(dir, 0o700))
	teams, usage, listen := filepath.Join(dir, "teams"), filepath.Join(dir, "usage"), freeAddress(t)
	require.NoError(t, os.WriteFile(teams, []byte("gold: "+hashOf("a token")+"\n"), 0o600))
	p := start(t, append(flags, "--teams", teams, "--usage", usage, "--key-env", "A_SECRET", "--listen", listen, "--page", "off")...)
	p.Says("take turns")
	_, err := send(http.MethodPost, "http://"+listen+"/v1/x", "{}", "Authorization", "Bearer a token")
	require.NoError(t, err)
	require.Zero(t, p.Stop(syscall.SIGINT))
	require.FileExists(t, usage)

	status, told := do(t, append(flags, "--usage", "`{")...)
	require.Equal(t, 1, status)
	require.Contains(t, told, "can't be written in a Caddyfile")
}

// weightsIn returns the weights somewhere within a configuration.
func weightsIn(config any) map[string]any {
	switch in := config.(type) {
	case []any:
		for _, one := range in {
			if w := weightsIn(one); w != nil {
				return w
			}
		}
	case map[string]any:
		if w, ok := in["weights"].(map[string]any); ok {
			return w
		}
		for _, one := range in {
			if w := weightsIn(one); w != nil {
				return w
			}
		}
	}
	return nil
}

// Two gateways at one port would each get a part of the calls, and pass twice the quota on. The second one leaves no file behind.
func TestASecondGatewayAtAPortDoesNotStart(t *testing.T) {
	listen := freeAddress(t)
	args := []string{"llm", "--upstream", "http://127.0.0.1:1", "--requests", "600", "--page", "off", "--listen"}
	start(t, append(args, listen)...).Says("take turns")
	for _, second := range []string{listen, port(t, listen)} {
		p := start(t, append(args, second)...)
		require.Equal(t, 1, p.Wait())
		require.Contains(t, p.Output(), fmt.Sprintf("shaperd llm: --listen: %q: address already in use", second))
		left, err := filepath.Glob(filepath.Join(p.Command.Dir, "shaperd-demo-*"))
		require.NoError(t, err)
		require.Empty(t, left)
	}
}

// Caddy logs the header of a call whose answer breaks off.
func TestTheLogOfTheGatewayHasNoKeys(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		fmt.Fprint(w, "{")
		w.(http.Flusher).Flush() // Without a beginning it is no answer, and the gateway says so itself.
		panic(http.ErrAbortHandler)
	}))
	defer upstream.Close()
	listen := freeAddress(t)
	p := start(t, "llm", "--upstream", upstream.URL, "--provider", "gemini", "--requests", "600", "--listen", listen, "--page", "off")
	p.Says("take turns")
	_, _ = send(http.MethodPost, "http://"+listen+"/v1/models/m:generateContent?alt=sse&key=secret-1", "{}",
		"Authorization", "Bearer secret-2", "X-Api-Key", "secret-3", "X-Goog-Api-Key", "secret-4", "Api-Key", "secret-5") // It breaks off.
	p.Says("generateContent?alt=sse")
	require.NotContains(t, p.Output(), "secret-")
}

var (
	printedGateway = regexp.MustCompile(`(gateway|page) +(http://127\.0\.0\.1:\d+) `)
	printedCurl    = regexp.MustCompile(`(?m)^  (curl .*)$`)
)

// With quotas of models the demonstration sets no quota beside them, which would be an error.
func TestTheDemonstrationTakesQuotasOfModels(t *testing.T) {
	t.Parallel()
	status, text := do(t, "llm", "--demo", "--print", "--provider", "anthropic", "--quota", "claude-*: 60 requests", "--quota", "default: 7 requests")
	require.Zero(t, status, text)
	require.Contains(t, text, "model claude-*")
	require.NotContains(t, text, "input")
}

func TestTheDemonstrationOfTheGatewayShowsTeamsThatTakeTurns(t *testing.T) {
	t.Parallel()
	for _, provider := range []string{"openai", "anthropic", "gemini", "bedrock", "openai-compatible"} {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			p := start(t, "llm", "--demo", "--provider", provider, "--listen", freeAddress(t), "--page", freeAddress(t))
			p.Says("Your own:")
			urls := map[string]string{}
			for _, found := range printedGateway.FindAllStringSubmatch(p.Output(), -1) {
				urls[found[1]] = found[2]
			}
			require.Len(t, urls, 2, p.Output())
			p.Until(func() bool {
				body := mustGet(t, urls["page"]+"/api/buckets").body
				return regexp.MustCompile(`"waiting":[1-9]\d`).MatchString(body)
			}, "many wait")

			lines := printedCurl.FindAllStringSubmatch(p.Output(), -1)
			require.Len(t, lines, 2)
			if _, err := exec.LookPath("curl"); err == nil {
				for _, line := range lines {
					text, err := exec.Command("sh", "-c", line[1]).CombinedOutput()
					require.NoError(t, err, "%s", text)
					require.NotContains(t, string(text), `"error"`)
				}
			}
			require.Zero(t, p.Stop(syscall.SIGINT))
		})
	}
}

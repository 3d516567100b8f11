package report

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// replayedRules are rules as a replay has them. Some have no counterpart in nginx.
func replayedRules() *Document {
	return &Document{From: &when, To: &when, Key: "route client_ip", Keys: 2, Rules: []Rule{
		{Rule: "", Limits: "10/s burst 20 depth 40 wait 2s"},
		{Rule: "%2Forders%2F{id}", Limits: "4.76/min burst 1 depth 3 inflight 4"},
		{Rule: "%2Fstatic%2F", Limits: "inf depth 0"},
		{Rule: "POST %2Flogin", Limits: "5/min burst 3"},
		{Rule: "POST %2Flogin/192.0.2.1", Limits: "1/d"},
		{Rule: "POST %2Flogin/-", Limits: ""},
		{Rule: "POST %2Flogin/2001:db8::%2F64", Limits: "9/s"},
		{Rule: `GET shop.example%2F"$\%2F{$}`, Limits: "22.3/s burst 1 depth 110 wait 5s"},
	}}
}

var routed = Setup{Files: []string{"shaper.yaml"}, Key: []string{"route", "client_ip"}, Routes: []string{"/orders/", "GET /items/{path...}"}, IPv6Bits: 64}

func TestLimitsAreWrittenForNginx(t *testing.T) {
	for limits, want := range map[string][2]string{
		"50/s":                           {"rate=50r/s", "limit_req zone=shape_1;"},
		"50/s burst 1":                   {"rate=50r/s", "limit_req zone=shape_1;"},
		"50/s burst 5":                   {"rate=50r/s", "limit_req zone=shape_1 burst=4 nodelay;"},
		"50/s depth 5":                   {"rate=50r/s", "limit_req zone=shape_1 burst=5;"},
		"50/s burst 3 depth 5":           {"rate=50r/s", "limit_req zone=shape_1 burst=7 delay=2;"},
		"50/s burst 3 depth 5 wait 40ms": {"rate=50r/s", "limit_req zone=shape_1 burst=4 delay=2;"},
		"22.3/s depth 110 wait 5s":       {"rate=1338r/m", "limit_req zone=shape_1 burst=110;"},
		"7.77/min depth 1":               {"rate=8r/m", "limit_req zone=shape_1 burst=1;"},
		"3/d burst 10":                   {"rate=1r/m", "limit_req zone=shape_1 burst=9 nodelay;"},
		"inf":                            {"(default): inf", "limit_req_status 429;"},
	} {
		d := &Document{Rules: []Rule{{Limits: limits}}}
		text, err := Nginx(d, Setup{Key: []string{"client_ip"}, IPv6Bits: 64})
		require.NoError(t, err)
		require.Contains(t, text, want[0], limits)
		require.True(t, strings.HasSuffix(text, want[1]+"\n"), "%s:\n%s", limits, text)
		if strings.Contains(limits, "7.77") {
			require.Contains(t, text, "# the rate is rounded\n")
		}
	}
	d := &Document{Goal: "wait=1s", Found: []Found{
		{Rule: "", Requests: 5, Found: Outcome{Limits: "3.07/s depth 3 wait 1s"}},
		{Rule: "a", Requests: 5},
		{Rule: "b", Now: Outcome{Limits: "9/s"}},
	}}
	text, err := Nginx(d, Setup{Key: []string{"header:X-Api-Key"}})
	require.NoError(t, err)
	require.Contains(t, text, "# a: no limits\n# no rate keeps to the goal\n")
	require.Contains(t, text, "# b: 9/s\n# no request met it, so the limits are as they were\n")
	require.Contains(t, text, "# - a request without the header field X-Api-Key is not limited\n")
}

// nginx says itself whether it takes the configuration printed.
func TestNginxTakesWhatIsPrinted(t *testing.T) {
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		t.Skip("nginx is not installed: apt-get install nginx-light")
	}
	for _, setup := range []Setup{
		routed, {Key: []string{"all"}}, {Key: []string{"client_ip"}, IPv6Bits: 64}, {Key: []string{"host", "header:X-Api-Key", "client_ip"}},
	} {
		for _, d := range []*Document{replayedRules(), {Rules: []Rule{{Limits: "10/s burst 2 depth 3"}}}} {
			text, err := Nginx(d, setup)
			require.NoError(t, err)
			folder := t.TempDir()
			main := "pid " + folder + "/pid;\nevents {}\nhttp {\n" + text + "access_log off;\nserver { listen 127.0.0.1:8; }\n" +
				"client_body_temp_path " + folder + "/b; proxy_temp_path " + folder + "/p; fastcgi_temp_path " + folder + "/f;\n" +
				"uwsgi_temp_path " + folder + "/u; scgi_temp_path " + folder + "/s;\n}\n"
			file := filepath.Join(folder, "nginx.conf")
			require.NoError(t, os.WriteFile(file, []byte(main), 0o600))
			said, err := exec.CommandContext(t.Context(), nginx, "-t", "-p", folder, "-c", file, "-e", "stderr").CombinedOutput()
			require.NoError(t, err, "%s\n%s", said, text)
		}
	}
}

// The expressions of the map stand for the patterns of net/http.
func TestRoutesAreWrittenAsExpressions(t *testing.T) {
	for pattern, want := range map[string]string{
		"/":                    `^[^ ]+ [^/]*/.*$`,
		"/login":               `^[^ ]+ [^/]*/login$`,
		"GET /a.b":             `^(?:GET|HEAD) [^/]*/a\.b$`,
		"POST shop.example/c/": `^POST shop\.example/c/.*$`,
		"/o/{id}/x":            `^[^ ]+ [^/]*/o/[^/]+/x$`,
		"/f/{rest...}":         `^[^ ]+ [^/]*/f/.*$`,
		"/{$}":                 `^[^ ]+ [^/]*/$`,
		`/"\`:                  `^[^ ]+ [^/]*/\"\\\\$`,
	} {
		require.Equal(t, want, regexpOf(pattern), pattern)
	}
	text, err := Nginx(replayedRules(), routed)
	require.NoError(t, err)
	var order []string
	for line := range strings.Lines(text) {
		if _, pattern, ok := strings.Cut(line, "; # "); ok {
			order = append(order, strings.TrimSpace(pattern))
		}
	}
	require.Equal(t, []string{
		`POST /login`, `GET shop.example/"$\/{$}`, `GET /items/{path...}`, `/orders/{id}`, `/orders/`, `/static/`,
		`POST %2Flogin/2001:db8::%2F64, which nginx never meets: it compares whole addresses`, `POST %2Flogin/192.0.2.1`, `POST %2Flogin/-`, `POST %2Flogin`, `GET shop.example%2F"$\%2F{$}`, `%2Fstatic%2F`, `%2Forders%2F{id}`,
	}, order)
}

// caddyshaper's tests adapt this file.
const caddyfile = "../../../../caddyshaper/testdata/replayed.caddyfile"

func TestLimitsAreWrittenForCaddy(t *testing.T) {
	setup := routed
	setup.IPv6Bits = 56
	all, err := Caddy(replayedRules(), setup)
	require.NoError(t, err)
	d := &Document{Goal: "wait=1s", Found: []Found{{Requests: 5, Found: Outcome{Limits: "4/s depth 4 wait 1s"}}}}
	one, err := Caddy(d, Setup{Files: []string{"shaper.yaml"}, Key: []string{"client_ip"}, IPv6Bits: 64})
	require.NoError(t, err)
	d.Found = append(d.Found, Found{Rule: `a"b`, Requests: 5, Found: Outcome{Limits: "9/s depth 0"}}, Found{Rule: "c", Requests: 1})
	several, err := Caddy(d, Setup{Files: []string{"shaper.yaml", "here.yaml"}, Key: []string{"header:X-Api-Key"}})
	require.NoError(t, err)
	require.Contains(t, several, `# Write this into here.yaml:
#
#	default: 4/s depth 4 wait 1s
#	limits:
#	  "a\"b": 9/s depth 0
#	  # "c": no rate keeps to the goal
`)
	text := "a.example {\n" + all + "}\nb.example {\n" + one + "}\nc.example {\n" + several + "}\n"
	if os.Getenv("SHAPER_UPDATE_GOLDEN") == "1" {
		require.NoError(t, os.WriteFile(caddyfile, []byte(text), 0o644))
	}
	golden, err := os.ReadFile(caddyfile)
	require.NoError(t, err)
	require.Equal(t, string(golden), text)
}

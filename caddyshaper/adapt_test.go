package caddyshaper_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/caddyshaper"
)

// answersAs lets the upstream answer with the status that the path says, as in /429.
func (s *site) answersAs() {
	s.upstream.serves(func(w http.ResponseWriter, r *http.Request) {
		status, err := strconv.Atoi(r.URL.Path[1:])
		if err != nil {
			status = http.StatusOK
		}
		if status == 503 && r.URL.RawQuery != "" {
			w.Header().Set("Retry-After", r.URL.RawQuery)
		}
		w.WriteHeader(status)
	})
}

// The rate of the site, and that of fair queueing, follow what the upstream answers, by the same table as in Go.
func TestTheRateFollowsWhatTheUpstreamAnswers(t *testing.T) {
	for _, tt := range []struct{ shape, source string }{
		{"shape line {\n limits 1000/s depth 9\n site 70/s depth 99\n adapt min 5/s max 200/s start 100/s slow 10s\n}", "line/site"},
		{"shape line {\n limits 70/s depth 99\n fair client_ip\n adapt min 5/s max 200/s start 100/s slow 10s\n}", "line"},
	} {
		t.Run(tt.source, func(t *testing.T) {
			s := serve(t, tt.shape+proxied)
			s.answersAs()
			rate := func() string { return caddyshaper.InForce(tt.source, "") }
			require.Equal(t, "100/s depth 99", rate())
			for _, path := range []string{"/500", "/404", "/200", "/503", "/504", "/502", "/500"} {
				s.get(path)
			}
			require.Equal(t, "100/s depth 99", rate(), "three have failed")
			require.Equal(t, 429, s.get("/429").status)
			require.Equal(t, "60/s depth 99", rate(), "four of ten are bad")
			require.Equal(t, 503, s.get("/503?2").status)
			require.Equal(t, "30/s depth 99", rate())
		})
	}
}

// An upstream that is not there fails: Caddy answers the error of its proxy behind the lines.
func TestAnUpstreamThatIsNotThereLowersTheRate(t *testing.T) {
	s := serve(t, "shape line {\n limits 1000/s depth 9\n site 100/s depth 99\n adapt start 100/s\n}\nreverse_proxy 127.0.0.1:1")
	for range 4 {
		require.Equal(t, 502, s.get("/").status)
	}
	require.Equal(t, "100/s depth 99", caddyshaper.InForce("line/site", ""))
	require.Equal(t, 502, s.get("/").status)
	require.Equal(t, "50/s depth 99", caddyshaper.InForce("line/site", ""))
}

// A reload keeps the rate that was found, unless it says otherwise of the rate or of how it adapts.
func TestAReloadKeepsTheRateThatWasFound(t *testing.T) {
	shape := func(site, adapt string) string {
		return "shape line {\n limits 1000/s depth 9\n site " + site + "\n" + adapt + "\n}" + proxied
	}
	s := serve(t, shape("100/s depth 99", "adapt start 100/s"))
	s.answersAs()
	s.get("/429")
	for _, reload := range []struct{ site, adapt, then, afterARefusal string }{
		{"100/s depth 99", "adapt start 100/s", "90/s depth 99", "72/s depth 99"},
		{"100/s depth 50", "adapt start 100/s", "72/s depth 50", "50.4/s depth 50"},
		{"40/s depth 50", "adapt start 100/s", "40/s depth 50", ""}, // and so 100/s is no start any more
		{"40/s depth 50", "adapt start 20/s", "20/s depth 50", "18/s depth 50"},
		{"40/s depth 50", "", "40/s depth 50", "40/s depth 50"},
		{"40/s depth 50", "adapt min 4/s", "4/s depth 50", "4/s depth 50"},
	} {
		directives := shape(reload.site, reload.adapt)
		if reload.afterARefusal == "" {
			require.ErrorContains(t, s.load(directives), "adapt: Config.Start is 100, must be from Min to Max, which are 0.4 and 40")
			continue
		}
		s.reload(directives)
		require.Equal(t, reload.then, caddyshaper.InForce("line/site", ""), directives)
		time.Sleep(time.Millisecond)
		s.get("/429")
		require.Equal(t, reload.afterARefusal, caddyshaper.InForce("line/site", ""), directives)
	}
}

// The page says why the rate was lowered last.
func TestThePageSaysWhyTheRateWasLowered(t *testing.T) {
	s := serve(t, shownAtShaper+"shape line {\n limits 1000/s depth 9\n site 100/s depth 99\n adapt start 100/s\n}"+proxied)
	s.answersAs()
	s.get("/429")
	require.Contains(t, s.get("/shaper/api/v1/buckets/line%2Fsite/").body, `"reason":"refused"`)
	s.reload(shownAtShaper + "shape line {\n limits 1000/s depth 9\n site 100/s depth 99\n}" + proxied)
	require.Eventually(t, func() bool {
		return strings.Contains(s.get("/shaper/api/v1/buckets/line%2Fsite/").body, `"adapt":null`)
	}, enough, tick)
}

// A file of rules says how the rate of its line adapts. A change of it that leaves that and the rate as they are keeps the rate
// that was found.
func TestAFileSaysHowTheRateAdapts(t *testing.T) {
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	changes := uint64(0)
	change := func(limits, adapt, then string) {
		t.Helper()
		require.NoError(t, os.WriteFile(rules, []byte("default: "+limits+"\nfair: {by: client_ip}\n"+adapt), 0o600))
		changes++
		require.Eventually(t, func() bool {
			r, _ := caddyshaper.RuleChanges("line")
			return r == changes && caddyshaper.InForce("line", "") == then
		}, enough, time.Millisecond)
	}
	require.NoError(t, os.WriteFile(rules, []byte("default: 70/s depth 99\nfair: {by: client_ip}\nadapt: {start: 100/s, max: 200/s}"), 0o600))
	s := serve(t, "shape line {\n rules "+rules+"\n fair\n}"+proxied)
	s.answersAs()
	require.Equal(t, "100/s depth 99", caddyshaper.InForce("line", ""))
	s.get("/429")
	require.Equal(t, "90/s depth 99", caddyshaper.InForce("line", ""))
	change("70/s depth 50", "adapt: {start: 100/s, max: 200/s}", "90/s depth 50")
	change("70/s depth 50", "adapt: {min: 20/s, max: 200/s}", "20/s depth 50")
	change("70/s depth 50", "", "70/s depth 50")
	s.get("/429")
	require.Equal(t, "70/s depth 50", caddyshaper.InForce("line", ""))
}

package report

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/cmd/shapereplay/internal/find"
	"example.com/leakybucket/shaper"
)

var when = time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)

func TestNumbersAreRounded(t *testing.T) {
	for n, want := range map[int]string{0: "0", 12: "12", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		require.Equal(t, want, Number(n))
	}
	for _, test := range []struct {
		n, of int
		want  string
	}{{1, 1, "100%"}, {999, 1000, ">99%"}, {99, 100, "99%"}, {1, 3, "33%"}, {1, 10, "10%"}, {99, 1000, "9.9%"}, {1, 1000, "0.1%"}, {1, 7000, "0.014%"}, {1, 100_000, "<0.01%"}} {
		require.Equal(t, test.want, share(test.n, test.of))
	}
}

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

// The product of rate and wait may be more than an int of 32 bits counts. The shaper admits what waits for exactly as
// long as it may, and in floating point 0.58 · 50 is less than 29.
func TestALongestWaitLeavesRoomForAllThatLeaveWithinIt(t *testing.T) {
	burst, differences := nginxBurst(shaper.Limits{Rate: 1000, Depth: 10, MaxWait: 365 * 24 * time.Hour})
	require.Equal(t, " burst=10", burst)
	require.Empty(t, differences)
	burst, _ = nginxBurst(shaper.Limits{Rate: 50, Depth: 100, MaxWait: 580 * time.Millisecond, InFlight: 40})
	require.Equal(t, " burst=29", burst)
}

// caddyshaper's tests adapt this file.
const replayedCaddyfile = "../../../../caddyshaper/testdata/replayed.caddyfile"

func TestLimitsAreWrittenForCaddy(t *testing.T) {
	setup := routed
	setup.IPv6Bits = 56
	all, err := Caddy(replayedRules(), setup)
	require.NoError(t, err)
	d := &Document{Goal: "wait=1s", Found: []Found{{Requests: 5, Found: find.Outcome{Limits: "4/s depth 4 wait 1s"}}}}
	one, err := Caddy(d, Setup{Files: []string{"shaper.yaml"}, Key: []string{"client_ip"}, IPv6Bits: 64})
	require.NoError(t, err)
	d.Found = append(d.Found, Found{Rule: `a"b{$HOME}`, Requests: 5, Found: find.Outcome{Limits: "9/s depth 0"}}, Found{Rule: "c", Requests: 1})
	several, err := Caddy(d, Setup{Files: []string{"shaper.yaml", "{$HOME} {env.HOME}.yaml"}, Key: []string{"header:X-Api-Key"}})
	require.NoError(t, err)
	require.Contains(t, several, `# Write this into {$:{$}HOME} {env.HOME}.yaml:
#
#	default: 4/s depth 4 wait 1s
#	limits:
#	  "a\"b{\u0024HOME}": 9/s depth 0
#	  # "c": no rate keeps to the goal
`)
	text := "a.example {\n" + all + "}\nb.example {\n" + one + "}\nc.example {\n" + several + "}\n"
	if os.Getenv("SHAPER_UPDATE_GOLDEN") == "1" {
		require.NoError(t, os.WriteFile(replayedCaddyfile, []byte(text), 0o644))
	}
	golden, err := os.ReadFile(replayedCaddyfile)
	require.NoError(t, err)
	require.Equal(t, string(golden), text)
}

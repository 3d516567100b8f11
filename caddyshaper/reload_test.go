package caddyshaper_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/caddyshaper"
	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper"
)

func TestThoseInLineStayInLineOverAReload(t *testing.T) {
	// The cap keeps those in order who leave shortly one after another.
	s := serve(t, "shape line limits 1/h depth 2 inflight 1"+proxied)
	require.Equal(t, 200, s.get("/0").status)
	answers := s.inLine("line", "/1", "/2")
	s.reload("shape line limits 1/h depth 2 inflight 1\n	header X new" + proxied)
	require.Equal(t, 2, caddyshaper.Waiting("line"))
	require.Equal(t, 429, s.get("/3").status, "the line is full")
	s.reload("shape line limits 100/s depth 2 inflight 1" + proxied)
	for _, a := range answers() {
		require.Equal(t, 200, a.status)
	}
	require.Equal(t, []string{"/0", "/1", "/2"}, s.upstream.paths())
}

// Whoever waits in a line that a reload has replaced is counted, so the lines are kept for it; and is
// answered when the process ends.
func TestThoseInAReplacedLineAreNotForgotten(t *testing.T) {
	s := serve(t, "shape line {\n limits 100/s burst 9 depth 9\n site 1/h depth 5 inflight 1\n}"+proxied)
	require.Equal(t, 200, s.get("/0").status)
	answers := s.inLine("line", "/1")
	for i, site := range []string{" site 1/h depth 5\n", "", " site 1/h depth 5\n"} {
		s.reload("shape line {\n limits 100/s burst 9 depth 9\n" + site + "}" + proxied)
		require.Equal(t, 1, caddyshaper.Waiting("line"), "reload %d", i)
	}
	caddyshaper.CloseLines("line")
	require.Equal(t, 503, answers()[0].status)
}

func TestAHundredReloadsUnderLoadLoseNobody(t *testing.T) {
	const low, high, reloads, clients = 100, 200, 100, 8
	directives := func(perSecond int) string {
		return fmt.Sprintf("shape line limits %d/s depth 50%s", perSecond, proxied)
	}
	s := serve(t, directives(low))
	stop := make(chan bool)
	var all sync.WaitGroup
	var served atomic.Int64
	failed := make(chan answer, clients)
	for range clients {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if a := s.get("/"); a.err != nil || a.status != 200 {
					failed <- a
					return
				}
				served.Add(1)
			}
		})
	}
	// may is what may have left so far: the burst, what Slack lets a late line make up, and the
	// rate in force; while a reload goes on, the higher of the two.
	may := 1 + high*shaper.DefaultSlack.Seconds()
	rate, last := float64(low), time.Now()
	passed := func(perSecond float64) {
		now := time.Now()
		may += perSecond * now.Sub(last).Seconds()
		last = now
	}
	// There are more reloads if those who load it are slower.
	for i, giveUp := 0, last.Add(enough); i < reloads || served.Load() <= reloads && time.Now().Before(giveUp); i++ {
		time.Sleep(10 * time.Millisecond)
		passed(rate)
		rate = []float64{high, low}[i%2]
		s.reload(directives(int(rate)))
		passed(high)
	}
	close(stop)
	all.Wait()
	passed(rate)
	select {
	case a := <-failed:
		t.Fatalf("a request got status %d, error %v", a.status, a.err)
	default:
	}
	came := len(s.upstream.arrivals())
	require.Equal(t, int(served.Load()), came)
	lines := s.logged(came)
	require.Len(t, lines, came, "a request has come to the handlers that got no answer")
	for _, line := range lines {
		require.Contains(t, line, `"status":200`)
	}
	require.LessOrEqual(t, came, int(may))
	require.Greater(t, came, reloads, "there was no load")
}

func TestABadConfigurationLeavesTheRunningOneAsItIs(t *testing.T) {
	s := serve(t, "shape line limits 1/h depth 5"+proxied)
	require.Equal(t, 200, s.get("/0").status)
	answers := s.inLine("line", "/1", "/2")
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	require.NoError(t, os.WriteFile(rules, []byte("default: 5/s\nlimits:\n  api: 5/fortnight\n"), 0o600))
	for _, bad := range []string{
		"shape line limits 100/s depth 5\n	shape other {\n rules " + rules + "\n}" + proxied, // fails in Provision, after the line was found
		"shape line limits 100/s depth 5\n	bind 203.0.113.1" + proxied,                       // can't be listened on: fails in Start
	} {
		require.Error(t, s.load(bad))
		require.Equal(t, "1/h depth 5", caddyshaper.Limits("line", "-"))
		require.Equal(t, 2, caddyshaper.Waiting("line"))
	}
	names, _ := caddyshaper.Names()
	require.Equal(t, []string{"line"}, names)
	s.reload("shape line limits 100/s depth 5" + proxied)
	for _, a := range answers() {
		require.Equal(t, 200, a.status)
	}
}

func TestBrokenRulesAreToldWithFileAndLine(t *testing.T) {
	s := newSite(t)
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	require.NoError(t, os.WriteFile(rules, []byte("default: 5/s\nlimits:\n  api: 5/fortnight\n"), 0o600))
	err := s.load("shape {\n rules " + rules + "\n}" + proxied)
	require.ErrorContains(t, err, "shape: rules: "+rules+":3:10: ")
	require.ErrorContains(t, err, `(in the shape "http://shop.example")`)
	require.ErrorContains(t, s.load("shape {\n rules /nowhere/shaper.yaml\n}"+proxied), "shape: rules: /nowhere/shaper.yaml: cannot be read")
}

func TestLinesThatCanNotChangeAreReplacedWithTheirLevels(t *testing.T) {
	s := serve(t, "shape line {\n limits 1/h burst 2 depth 5\n}"+proxied)
	require.Equal(t, 200, s.get("/0").status)
	require.Equal(t, 200, s.get("/1").status)
	answers := s.inLine("line", "/2")
	s.reload("shape line {\n limits 1/h burst 2\n max_keys 7\n}" + proxied)
	require.Equal(t, 429, s.get("/3").status, "the new line has the level of the old one")
	require.Equal(t, 1, caddyshaper.Waiting("line"), "and those in the old one stay there")
	_, all := caddyshaper.Names()
	require.Equal(t, []string{"line", "line"}, all)
	s.giveUp()
	for _, a := range answers() {
		require.Error(t, a.err)
	}
}

func TestALineThatIsTakenOutGoesOnForThoseInIt(t *testing.T) {
	s := serve(t, "shape line limits 1/h depth 5"+proxied)
	require.Equal(t, 200, s.get("/0").status)
	answers := s.inLine("line", "/1", "/2")
	s.reload("reverse_proxy UPSTREAM")
	names, all := caddyshaper.Names()
	require.Empty(t, names)
	require.Equal(t, []string{"line"}, all)
	require.Equal(t, 2, caddyshaper.Waiting("line"))
	require.Equal(t, 200, s.get("/free").status)
	// A configuration that has the name again finds them.
	s.reload("shape line limits 100/s depth 5" + proxied)
	_, all = caddyshaper.Names()
	require.Equal(t, []string{"line"}, all)
	for _, a := range answers() {
		require.Equal(t, 200, a.status)
	}
}

func TestRulesAreReadAgainWhenTheyChange(t *testing.T) {
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	write := func(text string) { require.NoError(t, os.WriteFile(rules, []byte(text), 0o600)) }
	write("limits:\n  api: 1/h depth 5\n")
	s := serve(t, "shape line {\n rules "+rules+"\n key {query.plan}\n}"+proxied)
	require.Equal(t, 500, s.get("/?plan=other").status, "there is no rule")
	require.Equal(t, 200, s.get("/0?plan=api").status)
	answers := s.inLine("line", "/1?plan=api", "/2?plan=api")
	write("limits:\n  api: 100/s depth 5\n")
	for _, a := range answers() {
		require.Equal(t, 200, a.status)
	}
	write("limits:\n  api: no limits\n")
	realtime.Until(t, func() bool {
		text, _ := os.ReadFile(s.log + ".app")
		return containsAll(string(text), "the rules in force stay", rules+":2:8")
	}, "the log tells of both")
	require.Equal(t, "100/s depth 5", caddyshaper.Limits("line", "api"))
}

// A file of the configuration before may change while the next one comes into force: its limits must not win.
func TestRulesOfAnOlderConfigurationDoNotWin(t *testing.T) {
	serve(t, "shape line {\n limits 50/s depth 5\n fair host\n}"+proxied)
	limits, err := shaper.ParseLimits("60/s depth 5")
	require.NoError(t, err)
	require.Equal(t, limits, caddyshaper.ReloadBeforeAChangeOfRules("line", limits, func(cond func() bool) {
		realtime.Until(t, cond, "the change waits")
	}))
}

// A group that no request enters costs its time at each reload. The lines of candidates are there once a configuration has one,
// also for requests that the handler of an earlier configuration serves.
func TestLinesHaveTheGroupsThatTheyUse(t *testing.T) {
	for lines, groups := range map[string]int{
		"limits 50/s\n fair host": 0, "quota openai {\n requests 5\n }": 0, "limits 50/s": 1, "limits 50/s\n dry_run": 1, "limits 50/s\n candidate 1/s": 2,
	} {
		s := serve(t, "shape line {\n "+lines+"\n}"+proxied)
		require.Equal(t, groups, caddyshaper.Groups("line"), lines)
		s.stop()
	}
	verdict := "\nheader >X-Verdict {http.shape.verdict}"
	s := serve(t, "shape line {\n limits 50/s\n}"+verdict+proxied)
	require.Empty(t, s.get("/").header.Get("X-Verdict"))
	s.reload("shape line {\n limits 50/s\n candidate 1/h\n}" + verdict + proxied)
	require.Equal(t, 2, caddyshaper.Groups("line"))
	require.NotEmpty(t, s.get("/").header.Get("X-Verdict"))
}

// A request of a route that nobody knows has the key "-", so a rule for a new route would be for nobody.
func TestARouteThatAFileAddsIsInTheKeys(t *testing.T) {
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	write := func(text string) { require.NoError(t, os.WriteFile(rules, []byte(text), 0o600)) }
	write("default: 1000/s\nlimits:\n  GET %2Fa: 1000/s\n")
	s := serve(t, "shape line {\n rules "+rules+"\n key route\n}\nrespond {http.shape.key}")
	require.Equal(t, "GET %2Fa", s.get("/a").body)
	require.Equal(t, "-", s.get("/b").body)
	write("default: 1000/s\nlimits:\n  GET %2Fb: 1000/s\n")
	realtime.Until(t, func() bool { return s.get("/b").body == "GET %2Fb" }, "the new route is a key")
	require.Equal(t, "-", s.get("/a").body)
}

func TestALineOfTheSiteCanComeAndGoAndChange(t *testing.T) {
	with := func(site string) string {
		return "shape line {\n limits 100/s burst 100\n" + site + "\n}" + proxied
	}
	s := serve(t, with(""))
	require.Equal(t, 200, s.get("/").status)
	s.reload(with("site 1/h burst 2"))
	require.Equal(t, 200, s.get("/").status)
	require.Equal(t, 200, s.get("/").status)
	require.Equal(t, 429, s.get("/").status)
	s.reload(with("site 1/h burst 2 inflight 1"))
	require.Equal(t, 429, s.get("/").status, "the level stays when a cap comes")
	s.reload(with(""))
	require.Equal(t, 200, s.get("/").status)
}

func TestAConfigurationThatFailsAtTheLastMomentIsUndone(t *testing.T) {
	s := serve(t, "shape line {\n limits 1/h depth 5\n site 1/h burst 2\n}"+proxied)
	require.Equal(t, 200, s.get("/0").status)
	s.loadAndUndo("shape line {\n limits 2/h depth 5\n}" + proxied)
	require.Equal(t, "1/h depth 5", caddyshaper.Limits("line", "-"))
	names, _ := caddyshaper.Names()
	require.Equal(t, []string{"line"}, names)
	answers := s.inLine("line", "/1")
	s.giveUp()
	require.Error(t, answers()[0].err)
}

// loadAndUndo loads a configuration that fails at the last moment. It is in force for some milliseconds, in which the level
// is not to drain.
func (s *site) loadAndUndo(directives string) {
	s.t.Helper()
	config, err := adapt(s.caddyfile(directives))
	require.NoError(s.t, err)
	var fields map[string]any
	require.NoError(s.t, json.Unmarshal(config, &fields))
	// Caddy looks for the issuers when everything has been started.
	fields["admin"] = map[string]any{"disabled": true, "identity": map[string]any{"issuers": []any{map[string]any{"module": "none"}}}}
	config, err = json.Marshal(fields)
	require.NoError(s.t, err)
	require.ErrorContains(s.t, caddy.Load(config, true), "identity issuer")
}

// BenchmarkReload is a reload while each of 100,000 keys has a level: one that changes limits, and
// one that changes what can't change for lines in use, so that new lines get the levels.
func BenchmarkReload(b *testing.B) {
	const keys = 100_000
	for name, config := range map[string]func(i int) string{
		"other-limits": func(i int) string { return fmt.Sprintf("limits %d/h burst 9", 1+i%2) },
		"other-lines":  func(i int) string { return fmt.Sprintf("limits 1/h burst 9\n max_keys %d", 2*keys+i) },
	} {
		b.Run(name, func(b *testing.B) {
			s := newSite(b)
			load := func(i int) { s.reload("shape many {\n " + config(i) + "\n}" + proxied) }
			load(0)
			caddyshaper.Fill("many", keys)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				load(i)
			}
			require.Equal(b, keys, caddyshaper.Keys("many"))
		})
	}
}

// stop ends the configuration, and waits until its lines are gone.
func (s *site) stop() {
	s.t.Helper()
	require.NoError(s.t, caddy.Stop())
	realtime.Until(s.t, func() bool {
		_, all := caddyshaper.Names()
		return len(all) == 0
	}, "no bucket is left")
}

func TestLevelsOutliveTheProcessInTheStateFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "levels.json")
	lines := func(name string) string {
		return "shape " + name + " {\n limits 1/h\n key {query.user}\n site 1/h burst 3\n state " + file + "\n}"
	}
	directives := lines("one") + "\n	shape /two limits 1/s\n" + proxied
	s := serve(t, directives)
	require.Equal(t, 200, s.get("/?user=ann").status)
	s.stop()
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	s.reload(directives)
	require.Equal(t, 429, s.get("/?user=ann").status)
	require.Equal(t, 200, s.get("/?user=bob").status)
	require.Equal(t, 200, s.get("/?user=cid").status)
	require.Equal(t, 429, s.get("/?user=dan").status, "the level of the site is kept too")
	s.stop()

	// Another name neither gets those levels nor takes them away.
	s.reload(lines("other") + proxied)
	require.Equal(t, 200, s.get("/?user=ann").status)
	s.stop()
	s.reload(directives)
	require.Equal(t, 429, s.get("/?user=ann").status)
}

func TestABrokenStateFileIsSetAside(t *testing.T) {
	for _, text := range []string{"", "{", `{"version":99,"shapers":{}}`, `{"version":1,"shapers":{"line":{"keys":{"format":1}}}}`} {
		file := filepath.Join(t.TempDir(), "levels.json")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		s := serve(t, "shape line {\n limits 1/h\n state "+file+"\n}"+proxied)
		require.Equal(t, 200, s.get("/").status)
		s.stop()
		now, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Contains(t, string(now), `"line":{`)
		if aside, err := os.ReadFile(file + ".broken"); err == nil {
			require.Equal(t, text, string(aside))
		}
		log, err := os.ReadFile(s.log + ".app")
		require.NoError(t, err)
		require.Regexp(t, "set aside|could not be restored", string(log))
	}
}

func TestTheFolderOfAStateFileMustExist(t *testing.T) {
	s := newSite(t)
	err := s.load("shape {\n limits 1/s\n state " + filepath.Join(t.TempDir(), "none", "levels.json") + "\n}" + proxied)
	require.ErrorContains(t, err, "shape: state: ")
	require.ErrorContains(t, err, "the folder of the file must exist")
}

func TestARejectedConfigurationWritesNoLevels(t *testing.T) {
	file := filepath.Join(t.TempDir(), "levels.json")
	s := newSite(t)
	require.Error(t, s.load("shape {\n limits 1/s\n state "+file+"\n}\n	bind 203.0.113.1"+proxied))
	require.NoFileExists(t, file)
}

package caddyshaper_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/caddyshaper"
	"example.com/leakybucket/internal/realtime"
)

const (
	controlToken = "correct horse battery staple"
	controlled   = "\nshape_inspect /shaper* {\n hosts shop.example\n control \"" + controlToken + "\"\n}"
)

// A toldChange has the fields of the API's changes that tests look at.
type toldChange struct {
	Kind, Source, Key, Who, Limits, Before, Outcome string
	From, Until                                     time.Time
}

// changes returns what the API tells of changes.
func (s *site) changes() (inForce, past []toldChange) {
	s.t.Helper()
	var told struct {
		InForce []toldChange `json:"in_force"`
		Past    []toldChange
	}
	a := s.get("/shaper/api/changes")
	require.Equal(s.t, 200, a.status, a.body)
	require.NoError(s.t, json.Unmarshal([]byte(a.body), &told))
	return told.InForce, told.Past
}

// change changes something through the API.
func (s *site) change(path string, fields map[string]string) {
	s.t.Helper()
	body, err := json.Marshal(fields)
	require.NoError(s.t, err)
	a := s.send(http.MethodPost, "/shaper/api/"+path, strings.NewReader(string(body)),
		"Content-Type", "application/json", "Authorization", "Bearer "+controlToken)
	require.Equal(s.t, 200, a.status, a.body)
}

// A kindOfLimit is a way in which a configuration says the limit of a line. All of them stand in one configuration, so that a test
// waits for the ends of their changes at once.
type kindOfLimit struct {
	name      string                           // of the shape
	ofShape   string                           // the end of the name of the source behind it
	key       string                           // of the bucket
	says      func(limit, rules string) string // the lines of the shape
	limit     string
	other     string
	operators string // what an operator sets for a time
	asLimit   string // what the configuration says if it says the same; "": it can't
}

func (k kindOfLimit) source() string { return k.name + k.ofShape }

// inForce returns the limits that the bucket has.
func (k kindOfLimit) inForce() string { return caddyshaper.InForce(k.source(), k.key) }

const onTop = "7/s burst 3 depth 5"

func kindsOfLimits() []kindOfLimit {
	all := []kindOfLimit{
		{name: "all", says: func(limit, _ string) string { return "limits " + limit + "\nkey all" }},
		{name: "key", key: "ann", says: func(limit, _ string) string { return "limits " + limit + "\nkey {query.user}" }},
		{name: "rule", key: "ann", says: func(limit, rules string) string {
			writeRules(rules, "default: 9/s\nlimits:\n  ann: "+limit)
			return "rules " + rules + "\nkey {query.user}"
		}},
		{name: "site", ofShape: "/site", says: func(limit, _ string) string { return "limits 1000/s\nsite " + limit }},
		{name: "candidate", ofShape: "/candidate", key: "ann", says: func(limit, _ string) string {
			return "limits 1000/s\ncandidate " + limit + "\nkey {query.user}"
		}},
		{name: "fair", says: func(limit, _ string) string { return "limits " + limit + "\nfair {query.user}" }},
		{name: "file", says: func(limit, rules string) string {
			writeRules(rules, "fair: {by: host}\ndefault: "+limit)
			return "rules " + rules + "\nfair"
		}},
		{
			name: "quota", limit: "tokens 1000000", other: "tokens 2000000\n burst 20s", operators: "1000/s burst 50000 depth 9 wait 1min",
			says: func(limit, _ string) string { return "quota openai {\n" + limit + "\n}" },
		},
	}
	for i := range all {
		if k := &all[i]; k.limit == "" {
			k.limit, k.other, k.operators, k.asLimit = "50/s burst 5 depth 5", "60/s burst 5 depth 5", onTop, onTop
		}
	}
	return all
}

func writeRules(file, text string) {
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		panic(err)
	}
}

// In an incident an operator sets a limit for a time. What others change meanwhile of the configuration must not undo it, and
// what is told to be in force must be in force.
func TestAnOperatorsChangeOutlivesWhatDoesNotChangeItsLimit(t *testing.T) {
	type scene struct {
		*site
		kinds  []kindOfLimit
		before map[string]string // the limits, by source
		told   []toldChange      // after the change

		// load returns a configuration that says a limit of each kind, and more lines in each shape. Its files of rules are in a
		// folder of their own unless it is "".
		load func(limit func(kindOfLimit) string, more, folder string) string
	}
	limit := func(k kindOfLimit) string { return k.limit }
	other := func(k kindOfLimit) string { return k.other }
	// undisturbed says that all changes are in force.
	undisturbed := func(s *scene, msg string) {
		s.t.Helper()
		for _, k := range s.kinds {
			require.Equal(s.t, k.operators, k.inForce(), "%s: %s", k.name, msg)
		}
		told, _ := s.changes()
		require.ElementsMatch(s.t, s.told, told, msg)
	}
	// over says that none is, and how the latest of each line has ended unless outcome is "".
	over := func(s *scene, outcome string) {
		s.t.Helper()
		told, past := s.changes()
		require.Empty(s.t, told)
		for _, k := range s.kinds {
			latest := slices.IndexFunc(past, func(c toldChange) bool { return c.Source == k.source() })
			require.True(s.t, outcome == "" || latest >= 0 && past[latest].Outcome == outcome, "%s: %+v", k.name, past)
		}
	}
	putBack := func(s *scene, outcome string) {
		s.t.Helper()
		over(s, outcome)
		for _, k := range s.kinds {
			require.Equal(s.t, s.before[k.name], k.inForce(), k.name)
		}
	}
	overtaken := func(s *scene, outcome string) {
		s.t.Helper()
		for _, k := range s.kinds {
			require.NotContains(s.t, []string{s.before[k.name], k.operators}, k.inForce(), k.name)
		}
		over(s, outcome)
	}
	ended := func(s *scene) {
		s.t.Helper()
		realtime.Until(s.t, func() bool { told, _ := s.changes(); return len(told) == 0 }, "the changes have ended")
	}
	for name, c := range map[string]struct {
		span string
		do   func(*scene)
	}{
		"a reload that changes something else": {"10m", func(s *scene) {
			s.reload(s.load(limit, "", "") + "\nheader X new")
			undisturbed(s, "with a header")
			s.reload(s.load(limit, "coarse_timer", ""))
			undisturbed(s, "with other lines of the same limits")
			s.reload(s.load(limit, "", "") + "\nheader X new")
			undisturbed(s, "and with others again")
		}},
		"a reload that changes the limit": {"10m", func(s *scene) {
			s.reload(s.load(other, "", ""))
			overtaken(s, "overtaken")
		}},
		"a reload that changes the limit and the lines": {"10m", func(s *scene) {
			s.reload(s.load(other, "coarse_timer", ""))
			overtaken(s, "")
		}},
		"a reload without the line": {"10m", func(s *scene) {
			s.reload("shape another limits 1/s" + controlled + proxied)
			over(s, "put_back")
			s.reload(s.load(limit, "", ""))
			putBack(s, "put_back")
		}},
		"a reload without the line, which fails": {"10m", func(s *scene) {
			s.loadAndUndo("shape another limits 1/s" + controlled + proxied)
			undisturbed(s, "")
		}},
		"a reload that says what the operator has set": {"2s", func(s *scene) {
			s.reload(s.load(func(k kindOfLimit) string { return cmp.Or(k.asLimit, k.limit) }, "", ""))
			for _, told := range s.told {
				time.Sleep(time.Until(told.Until.Add(tick)))
			}
			ended(s)
			over(s, "")
			for _, k := range s.kinds {
				if k.asLimit != "" {
					require.Equal(s.t, k.operators, k.inForce(), k.name)
				}
			}
		}},
		"a reload that fails": {"10m", func(s *scene) {
			require.Error(s.t, s.site.load(s.load(other, "", "others")+"\nbind 203.0.113.1"))
			undisturbed(s, "while it was provisioned")
			s.loadAndUndo(s.load(other, "", "others"))
			undisturbed(s, "while it was in force for a moment")
		}},
		"a restart": {"10m", func(s *scene) {
			s.stop()
			s.reload(s.load(limit, "", ""))
			undisturbed(s, "")
			s.stop()
			s.reload(s.load(other, "", ""))
			overtaken(s, "")
		}},
		"its end after a reload": {"2s", func(s *scene) {
			s.reload(s.load(limit, "", "") + "\nheader X new")
			ended(s)
			putBack(s, "put_back")
		}},
		"its end after a restart": {"2s", func(s *scene) {
			s.stop()
			s.reload(s.load(limit, "", ""))
			ended(s)
			putBack(s, "")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := &scene{kinds: kindsOfLimits(), before: map[string]string{}}
			s.load = func(limit func(kindOfLimit) string, more, folder string) (shapes string) {
				require.NoError(t, os.MkdirAll(filepath.Join(dir, folder), 0o700))
				for _, k := range s.kinds {
					shapes += "shape " + k.name + " {\n" + k.says(limit(k), filepath.Join(dir, folder, k.name)) + "\n" + more +
						"\nstate " + filepath.Join(dir, "state") + "\n}\n"
				}
				return shapes + controlled + proxied
			}
			s.site = serve(t, s.load(limit, "", ""))
			for _, k := range s.kinds {
				s.before[k.name] = k.inForce()
				s.change("limits", map[string]string{"source": k.source(), "key": k.key, "limits": k.operators, "for": c.span, "who": "Ann"})
				require.Equal(t, k.operators, k.inForce(), k.name)
			}
			s.told, _ = s.changes()
			require.Len(t, s.told, len(s.kinds))
			c.do(s)
		})
	}
}

// The line of the site goes while its shape stays, and comes back with the limits that the configuration says.
func TestAChangeOfASiteThatWasRemovedDoesNotComeBack(t *testing.T) {
	for name, stop := range map[string]func(*site){"by a reload": func(*site) {}, "by a restart": (*site).stop} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "state")
			load := func(more string) string {
				return "shape line {\nlimits 1000/s\n" + more + "\nstate " + file + "\n}" + controlled + proxied
			}
			s := serve(t, load("site 50/s"))
			s.change("limits", map[string]string{"source": "line/site", "limits": onTop, "for": "10m"})
			stop(s)
			s.reload(load(""))
			s.reload(load("site 50/s"))
			require.Equal(t, "50/s depth 0", caddyshaper.InForce("line/site", ""))
			told, _ := s.changes()
			require.Empty(t, told)
		})
	}
}

// The line is held after a restart, so that must be told too.
func TestAHoldOutlivesARestart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state")
	directives := "shape line {\nlimits 50/s depth 5\nfair host\nstate " + file + "\n}" + controlled + proxied
	s := serve(t, directives)
	s.change("hold", map[string]string{"source": "line", "for": "10m"})
	before, _ := s.changes()
	require.Len(t, before, 1)
	for range 2 {
		s.reload(directives + "\nheader X new")
		s.stop()
		s.reload(directives)
		require.WithinDuration(t, before[0].Until, caddyshaper.FairStats("line").HeldUntil, time.Second)
		after, _ := s.changes()
		require.Len(t, after, 1)
		require.WithinDuration(t, before[0].Until, after[0].Until, time.Second)
		after[0].Until = before[0].Until
		require.Equal(t, before, after)
	}
	s.change("release", map[string]string{"source": "line"})
	s.stop()
	s.reload(directives)
	after, _ := s.changes()
	require.Empty(t, after)
	require.Equal(t, 200, s.get("/").status)
}

// A file of limits that changes is as a reload: it ends the changes of the keys whose limits it changes, and no others.
func TestAFileThatChangesEndsTheChangesOfItsKeys(t *testing.T) {
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	writeRules(rules, "limits: {ann: 50/s, bob: 50/s}")
	s := serve(t, "shape line {\nrules "+rules+"\nkey {query.user}\n}"+controlled+proxied)
	for _, key := range []string{"ann", "bob"} {
		s.change("limits", map[string]string{"source": "line", "key": key, "limits": onTop, "for": "10m"})
	}
	writeRules(rules, "limits: {ann: 60/s, bob: 50/s, cid: 50/s}")
	realtime.Until(t, func() bool { return caddyshaper.InForce("line", "ann") == "60/s depth 0" }, "the new rule is in force")
	realtime.Until(t, func() bool { inForce, _ := s.changes(); return len(inForce) == 1 }, "and the change has ended")
	inForce, past := s.changes()
	require.Equal(t, "bob", inForce[0].Key)
	require.Equal(t, "ann overtaken", past[0].Key+" "+past[0].Outcome)
	require.Equal(t, onTop, caddyshaper.InForce("line", "bob"))
}

// An operator's rate says nothing of how much a minute's quota is.
func TestAnOperatorsRateGivesNoQuotaAway(t *testing.T) {
	for _, rate := range []string{"50000/s", "1000/s"} {
		file := filepath.Join(t.TempDir(), "state")
		shape := func(more string) string {
			return quotaShape("tokens 1000000\n estimate asked", more+"\nstate "+file) + controlled
		}
		s := serve(t, shape(""))
		require.Equal(t, 200, s.send(http.MethodPost, "/", strings.NewReader(`{"max_tokens":480000}`)).status)
		s.change("limits", map[string]string{"source": "line", "limits": rate + " burst 500000 depth 9", "for": "10m"})
		level := caddyshaper.FairStats("line").Level
		begun := time.Now()
		same := func(when string) {
			t.Helper()
			now := caddyshaper.FairStats("line").Level
			require.LessOrEqual(t, now, level+1, when)
			require.GreaterOrEqual(t, now, level-50_000*time.Since(begun).Seconds()-1, when)
			require.Greater(t, now, level/2, when)
		}
		s.reload(shape("coarse_timer"))
		same("new lines")
		s.stop()
		s.reload(shape(""))
		same("a restart")
	}
}

// So does a rate in front of a quota that a reload has changed.
func TestAnOperatorsRateOfAQuotaIsTheSameAfterARestart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state")
	shape := func(tokens int) string {
		return quotaShape(fmt.Sprintf("tokens %d", tokens), "state "+file) + controlled
	}
	s := serve(t, shape(1_000_000))
	s.reload(shape(4_000_000))
	whole := caddyshaper.InForce("line", "")
	s.change("limits", map[string]string{"source": "line", "limits": "1000/s burst 40000 depth 9 wait 1min", "for": "10m"})
	s.stop()
	s.reload(shape(4_000_000))
	require.NotEqual(t, whole, caddyshaper.InForce("line", ""))
	require.Equal(t, "1000/s burst 40000 depth 9 wait 1min", caddyshaper.InForce("line", ""))
	s.reload(shape(4_000_000) + "\nheader X new")
	require.Equal(t, "1000/s burst 40000 depth 9 wait 1min", caddyshaper.InForce("line", ""))
	s.stop()
	s.reload(shape(1_000_000))
	inForce, _ := s.changes()
	require.Empty(t, inForce, "another quota is another limit")
}

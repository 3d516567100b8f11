package caddyshaper_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
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

// A kindOfLimit is a way in which a configuration says the limit of a line.
type kindOfLimit struct {
	name, source, key string
	says              func(limit, rules string) string // the lines of the shape
	limit, other      string
	operators         string // what an operator sets for a time
	asLimit           string // what the configuration says if it says the same; "": it can't
}

const onTop = "7/s burst 3 depth 5"

var kindsOfLimits = []kindOfLimit{
	{name: "limits of all", source: "line", says: func(limit, _ string) string { return "limits " + limit + "\nkey all" }},
	{name: "limits of a key", source: "line", key: "ann", says: func(limit, _ string) string { return "limits " + limit + "\nkey {query.user}" }},
	{name: "a rule", source: "line", key: "ann", says: func(limit, rules string) string {
		writeRules(rules, "default: 9/s\nlimits:\n  ann: "+limit)
		return "rules " + rules + "\nkey {query.user}"
	}},
	{name: "site", source: "line/site", says: func(limit, _ string) string { return "limits 1000/s\nsite " + limit }},
	{name: "candidate", source: "line/candidate", key: "ann", says: func(limit, _ string) string {
		return "limits 1000/s\ncandidate " + limit + "\nkey {query.user}"
	}},
	{name: "fair", source: "line", says: func(limit, _ string) string { return "limits " + limit + "\nfair {query.user}" }},
	{name: "fair of a file", source: "line", says: func(limit, rules string) string {
		writeRules(rules, "fair: {by: host}\ndefault: "+limit)
		return "rules " + rules + "\nfair"
	}},
	{
		name: "quota", source: "line", limit: "tokens 1000000", other: "tokens 2000000\n burst 20s", operators: "1000/s burst 50000 depth 9 wait 1min",
		says: func(limit, _ string) string { return "quota openai {\n" + limit + "\n}" },
	},
}

func writeRules(file, text string) {
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		panic(err)
	}
}

// In an incident an operator sets a limit for a time. What others change meanwhile of the configuration must not undo it, and
// what is told to be in force must be in force.
func TestAnOperatorsChangeOutlivesWhatDoesNotChangeItsLimit(t *testing.T) {
	for _, k := range kindsOfLimits {
		if k.limit == "" {
			k.limit, k.other, k.operators, k.asLimit = "50/s burst 5 depth 5", "60/s burst 5 depth 5", onTop, onTop
		}
		dir := t.TempDir()
		load := func(limit, more string) string {
			return "shape line {\n" + k.says(limit, filepath.Join(dir, "rules")) + "\n" + more +
				"\nstate " + filepath.Join(dir, "state") + "\n}" + controlled + proxied
		}
		inForce := func() string { return caddyshaper.InForce(k.source, k.key) }
		type scene struct {
			*site
			before string       // limits
			told   []toldChange // after the change
		}
		// undisturbed says that the change is in force.
		undisturbed := func(s *scene, msg string) {
			s.t.Helper()
			require.Equal(s.t, k.operators, inForce(), msg)
			told, _ := s.changes()
			require.Equal(s.t, s.told, told, msg)
		}
		// over says that it is not, and that the line has other limits.
		over := func(s *scene, limits, outcome string) {
			s.t.Helper()
			require.Equal(s.t, limits, inForce())
			told, past := s.changes()
			require.Empty(s.t, told)
			if outcome != "" {
				require.Equal(s.t, outcome, past[0].Outcome)
			}
		}
		for name, c := range map[string]struct {
			span string
			do   func(*scene)
		}{
			"a reload that changes something else": {"10m", func(s *scene) {
				s.reload(load(k.limit, "") + "\nheader X new")
				undisturbed(s, "with a header")
				s.reload(load(k.limit, "coarse_timer"))
				undisturbed(s, "with other lines of the same limits")
				s.reload(load(k.limit, "") + "\nheader X new")
				undisturbed(s, "and with others again")
			}},
			"a reload that changes the limit": {"10m", func(s *scene) {
				s.reload(load(k.other, ""))
				require.NotContains(s.t, []string{s.before, k.operators}, inForce())
				over(s, inForce(), "overtaken")
			}},
			"a reload that changes the limit and the lines": {"10m", func(s *scene) {
				s.reload(load(k.other, "coarse_timer"))
				require.NotContains(s.t, []string{s.before, k.operators}, inForce())
				over(s, inForce(), "")
			}},
			"a reload that says what the operator has set": {"1s", func(s *scene) {
				if k.asLimit == "" {
					return
				}
				s.reload(load(k.asLimit, ""))
				time.Sleep(time.Until(s.told[0].Until.Add(tick)))
				realtime.Until(s.t, func() bool { told, _ := s.changes(); return len(told) == 0 }, "the change has ended")
				over(s, k.operators, "")
			}},
			"a reload that fails": {"10m", func(s *scene) {
				require.Error(s.t, s.load(load(k.other, "")+"\nbind 203.0.113.1"))
				k.says(k.limit, filepath.Join(dir, "rules"))
				undisturbed(s, "while it was provisioned")
				if !strings.Contains(load(k.limit, ""), "rules") { // A file that changes and changes back is no failed reload.
					s.loadAndUndo(load(k.other, ""))
					undisturbed(s, "while it was in force for a moment")
				}
			}},
			"a restart": {"10m", func(s *scene) {
				s.stop()
				s.reload(load(k.limit, ""))
				undisturbed(s, "")
				s.stop()
				s.reload(load(k.other, ""))
				require.NotContains(s.t, []string{s.before, k.operators}, inForce())
				over(s, inForce(), "")
			}},
			"its end after a reload": {"1s", func(s *scene) {
				s.reload(load(k.limit, "") + "\nheader X new")
				realtime.Until(s.t, func() bool { told, _ := s.changes(); return len(told) == 0 }, "the change has ended")
				over(s, s.before, "put_back")
			}},
			"its end after a restart": {"1s", func(s *scene) {
				s.stop()
				s.reload(load(k.limit, ""))
				realtime.Until(s.t, func() bool { told, _ := s.changes(); return len(told) == 0 }, "the change has ended")
				over(s, s.before, "")
			}},
		} {
			t.Run(k.name+", "+name, func(t *testing.T) {
				t.Cleanup(func() { _ = os.Remove(filepath.Join(dir, "state")) })
				s := &scene{site: serve(t, load(k.limit, ""))}
				s.before = inForce()
				s.change("limits", map[string]string{"source": k.source, "key": k.key, "limits": k.operators, "for": c.span, "who": "Ann"})
				require.Equal(t, k.operators, inForce())
				s.told, _ = s.changes()
				require.Len(t, s.told, 1)
				c.do(s)
			})
		}
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
		shape := func(more string) string { return quotaShape("tokens 1000000", more+"\nstate "+file) + controlled }
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

// Units of a quota that a reload has changed are others after a restart, also those in which an operator has set a rate.
func TestAnOperatorsRateOfAQuotaIsTheSamePartOfItAfterARestart(t *testing.T) {
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
	require.Equal(t, "250/s burst 10000 depth 9 wait 1min", caddyshaper.InForce("line", ""))
	s.reload(shape(4_000_000) + "\nheader X new")
	require.Equal(t, "250/s burst 10000 depth 9 wait 1min", caddyshaper.InForce("line", ""))
	s.stop()
	s.reload(shape(1_000_000))
	inForce, _ := s.changes()
	require.Empty(t, inForce, "another quota is another limit")
}

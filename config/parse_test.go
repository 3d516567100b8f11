package config_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/config"
	"example.com/leakybucket/shaper"
)

// mistakes returns what Parse finds in the text, one line each.
func mistakes(t *testing.T, text string) []string {
	t.Helper()
	rules, err := config.Parse("f", []byte(text))
	require.Error(t, err, "%.200q", text)
	require.Nil(t, rules)
	errs, ok := errors.AsType[config.Errors](err)
	require.True(t, ok)
	require.NotEmpty(t, errs)
	return strings.Split(errs.Error(), "\n")
}

func TestEveryMistakeIsReportedAtItsPlace(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		// Names.
		{"default: {rate: 1/s, burts: 5}", `f:1:22: rule "default": burts: did you mean burst?`},
		{"default: {rate: 1/s, Burst: 5}", `f:1:22: rule "default": Burst: did you mean burst?`},
		{"default: {rate: 1/s, in_flight: 5}", `f:1:22: rule "default": in_flight: did you mean inflight?`},
		{"default: {rate: 1/s, colour: 5}", `f:1:22: rule "default": colour: unknown, expected rate, burst, depth, wait, slack, inflight or candidate`},
		{"default: {rate: 1/s, candidate: {rate: 1/s, candidate: 1/s}}", `f:1:45: rule "default": candidate candidate: unknown, expected rate, burst, depth, wait, slack or inflight`},
		{"limit: {api: 1/s}", `f:1:1: limit: did you mean limits?`},
		{"api: 1/s", `f:1:1: api: unknown, expected default, limits, fair or adapt`},
		{"default: 1/s\ndefault: 2/s", `f:2:1: default: stands on line 1 already`},
		{"default: {rate: 1/s, rate: 2/s}", `f:1:22: rule "default": rate: stands on line 1 already`},
		{"limits:\n  a: 1/s\n  b: 1/s\n  a: 2/s", `f:4:3: a: stands on line 2 already`},
		{"limits:\n  a: 1/s\n  'a': ~", `f:3:3: a: stands on line 2 already`},
		{"limits:\n  ~: 1/s", `f:2:3: "~": expected a key; this has a meaning of its own in YAML unless it stands in quotes`},
		{"limits:\n  <<: {a: 1/s}", `f:2:3: "<<": expected a key; this has a meaning of its own in YAML unless it stands in quotes`},
		{"limits:\n  ? [a]\n  : 1/s", `f:2:5: "[a]": expected a key, which is a single text`},
		// Limits as text. The column is where the mistake is.
		{"default: 50/x", `f:1:13: rule "default": rate 50/x: expected a unit: ns us ms s sec min h hour d day`},
		{"default: 50", `f:1:12: rule "default": rate 50: expected / and a unit, or per and a duration`},
		{"default: \"50/s dept 3\"", `f:1:16: rule "default": "50/s dept 3": expected burst, depth, wait, slack or inflight`},
		{"default: \"50/s \\x64ept 3\"", `f:1:10: rule "default": "50/s dept 3": expected burst, depth, wait, slack or inflight`},
		{"default: 0/s", `f:1:10: rule "default": rate 0/s: Limits.Rate is 0, must be above 0`},
		{"default: 1 per 300d burst 3", `f:1:27: rule "default": burst "1 per 300d burst 3": Limits.Burst is 3, which at Limits.Rate 3.858024691358025e-08 takes more than 365 days to drain`},
		{"default: ''", `f:1:11: rule "default": rate "''": expected a rate such as 50/s, 1 per 2s or inf`},
		{"default: " + strings.Repeat("é", 50), `f:1:10: rule "default": rate "` + strings.Repeat("é", 30) + `…": expected a rate such as 50/s, 1 per 2s or inf`},
		{"default: ${RATE}/s", `f:1:10: rule "default": rate "${RATE}/s": expected a rate such as 50/s, 1 per 2s or inf`},
		{"default: [1/s]", `f:1:10: rule "default": "[1/s]": expected limits, such as 50/s depth 100 or {rate: 50/s, depth: 100}`},
		{"default: 1/10s", `f:1:12: rule "default": rate 1/10s: expected a unit: ns us ms s sec min h hour d day; write 1 per 10s`},
		{"default: 100/100ms depth 3", `f:1:14: rule "default": rate "100/100ms depth 3": expected a unit: ns us ms s sec min h hour d day; write 100 per 100ms`},
		{"default: 1 in 1min depth 3", `f:1:10: rule "default": rate "1 in 1min depth 3": expected a number of at least 2 before in: write 1 per 61s`},
		{"default: 9 in 1min depth 3 burst 9", `f:1:34: rule "default": burst "9 in 1min depth 3 burst 9": expected a burst below 9, which is how many may leave in 1min`},
		// Limits as a mapping.
		{"default: {rate: 1/10s}", `f:1:19: rule "default": rate 1/10s: expected a unit: ns us ms s sec min h hour d day; write 1 per 10s`},
		{"default: {burst: 9, rate: 9 in 1min}", `f:1:18: rule "default": burst 9: expected a burst below 9, which is how many may leave in 1min`},
		{"default: {burst: 366, rate: 732 in 366d}", `f:1:18: rule "default": burst 366: Limits.Burst is 366, which at Limits.Rate 1.15740740667539e-05 takes more than 365 days to drain`},
		{"default: {rate: 1 in 1min, slack: 2s}", `f:1:17: rule "default": rate "1 in 1min": expected a number of at least 2 before in: write 1 per 63s`},
		{"default: {rate: 2.5 in 1min}", fmt.Sprintf(`f:1:17: rule "default": rate "2.5 in 1min": expected a whole number up to %d`, math.MaxInt)},
		{"default: {rate: 9 in 1m}", `f:1:23: rule "default": rate "9 in 1m": expected a unit: ns us ms s sec min h hour d day; write min`},
		{"default: {rate: '9 in 1min '}", `f:1:27: rule "default": rate "9 in 1min ": expected no blank at either end`},
		{"default: {rate: 9 in 1min burst 2}", `f:1:17: rule "default": rate "9 in 1min burst 2": expected only a rate, such as 50/s, 1 per 2s or inf`},
		{"default: {rate: 1/s, candidate: {rate: 9 in 1min, burst: 10}}", `f:1:58: rule "default": candidate.burst 10: expected a burst below 9, which is how many may leave in 1min`},
		{"default: {rate: 50000000 in 1ms}", `f:1:17: rule "default": rate "50000000 in 1ms": Limits.Rate is 2.3809523333333335e+09, must be at most 1e9 per second (or rate.Inf)`},
		{"default: {depth: 3}", `f:1:10: rule "default": "{depth: 3}": these limits have no rate`},
		{"default: {}", `f:1:10: rule "default": "{}": these limits have no rate`},
		{"default: {rate: 50/s depth 3}", `f:1:17: rule "default": rate "50/s depth 3": expected only a rate, such as 50/s, 1 per 2s or inf`},
		{"default: {rate: '10, 1/s'}", `f:1:17: rule "default": rate "10, 1/s": expected only a rate, such as 50/s, 1 per 2s or inf`},
		{"default: {rate: .inf}", `f:1:17: rule "default": rate .inf: expected a rate such as 50/s, 1 per 2s or inf`},
		{"default: {rate: 1 per 2x}", `f:1:24: rule "default": rate "1 per 2x": expected a unit: ns us ms s sec min h hour d day`},
		{"default: {rate: [1/s]}", `f:1:17: rule "default": rate "[1/s]}": expected the rate, which is a single value`},
		{"default: {rate: 1/s, wait: 2}", `f:1:29: rule "default": wait 2: expected a unit: ns us ms s sec min h hour d day`},
		{"default: {rate: 1/s, wait: 2s depth 3}", `f:1:28: rule "default": wait "2s depth 3": expected a duration such as 2s or 1.5h`},
		{"default: {rate: 1/s, slack: }", `f:1:22: rule "default": slack: has no value: write one, or leave it out`},
		{"default: {rate: 1/s, burst: -1}", `f:1:29: rule "default": burst -1: expected a whole number such as 100`},
		{"default: {rate: 1/s, burst: '5'}", `f:1:29: rule "default": burst 5: expected a whole number such as 100`},
		{"default: {rate: 1/s, burst: 0x10}", `f:1:29: rule "default": burst 0x10: expected a whole number such as 100`},
		{"default: {rate: 1/s, burst: 1_000}", `f:1:29: rule "default": burst 1_000: expected a whole number such as 100`},
		{"default: {rate: 1/s, depth: 99999999999999999999}", fmt.Sprintf(`f:1:29: rule "default": depth 99999999999999999999: expected a whole number up to %d`, math.MaxInt)},
		{"default: {rate: 1/s, depth: 1.5}", `f:1:29: rule "default": depth 1.5: expected a whole number such as 100`},
		{"default: {rate: 1/s, depth: 010}", `f:1:29: rule "default": depth 010: a 0 in front makes it octal for some: write 10`},
		{"default: {rate: 1/s, inflight: ~}", `f:1:22: rule "default": inflight: has no value: write one, or leave it out`},
		{"default: {burst: 3, rate: 1 per 300d}", `f:1:18: rule "default": burst 3: Limits.Burst is 3, which at Limits.Rate 3.858024691358025e-08 takes more than 365 days to drain`},
		{"default: {rate: 1/s, candidate: 0/s}", `f:1:33: rule "default": candidate.rate 0/s: Limits.Rate is 0, must be above 0`},
		{"default: {rate: 1/s, candidate: ~}", `f:1:22: rule "default": candidate: has no value: write one, or leave it out`},
		// What is cut off must not mean that a rule is taken away, or that there are none.
		{"limits:\n  api:", `f:2:3: api: has no limits: write some, such as 50/s depth 100, or ~ to take the rule away`},
		{"default:", `f:1:1: default: has no limits: write some, such as 50/s depth 100, or ~ to take the rule away`},
		{"limits:", `f:1:1: limits: expected rules below it, as in api: 50/s depth 100 (or {} for none)`},
		{"limits: [a]", `f:1:1: limits: expected rules below it, as in api: 50/s depth 100 (or {} for none)`},
		{"", `f: the file says nothing, must have "default" or "limits"`},
		{" \n\n", `f: the file says nothing, must have "default" or "limits"`},
		{"# nothing\n", `f: the file says nothing, must have "default" or "limits"`},
		{"---\n", `f: the file says nothing, must have "default" or "limits"`},
		{"~", `f: the file says nothing, must have "default" or "limits"`},
		{"{}", `f:1:1: "{}": the file says nothing, must have "default" or "limits"`},
		{"[]", `f:1:1: "[]": expected "default" and "limits"`},
		{"default: 1/s\n---\ndefault: 2/s", `f:2:1: ---: a second document begins, a file has one`},
		{"default: 1/s\n---\n'", `f:3:1: "'": not YAML: found unexpected end of stream (while scanning a quoted scalar, line 3)`},
		// Keys.
		{"limits: {'': 1/s}", `f:1:10: "'': 1/s}": a key has at least one part: an empty part is written "-", and the rule for keys that match nothing else is "default", beside "limits"`},
		{"limits: {a//b: 1/s}", `f:1:10: a//b: an empty part is written "-", and a "/" within a part is written "%2F": write a/-/b or a%2F%2Fb`},
		{"limits: {/login: 1/s}", `f:1:10: /login: an empty part is written "-", and a "/" within a part is written "%2F": write -/login or %2Flogin`},
		{"limits: {login/: 1/s}", `f:1:10: login/: an empty part is written "-", and a "/" within a part is written "%2F": write login/- or login%2F`},
		{"limits: {100%: 1/s}", `f:1:10: 100%: a "%" is written "%25": write 100%25`},
		{"limits: {a%2fb: 1/s}", `f:1:10: a%2fb: within a part "%" is written "%25" and "/" is written "%2F", a part that is just "-" is written "%2D", and nothing else is escaped: write a%2Fb`},
		{"limits: {a%2Db: 1/s}", `f:1:10: a%2Db: within a part "%" is written "%25" and "/" is written "%2F", a part that is just "-" is written "%2D", and nothing else is escaped: write a-b`},
		{"limits: {a%41/%ff: 1/s}", `f:1:10: a%41/%ff: within a part "%" is written "%25" and "/" is written "%2F", a part that is just "-" is written "%2D", and nothing else is escaped, and a "%" is written "%25": write aA/%25ff`},
		{"limits:\n ? " + strings.Repeat("k", 300) + "\n : 1/s", "f:2:4: \"" + strings.Repeat("k", 60) + "…\": of a part longer than 256 bytes a key has the beginning and a hash: write \"" + shaper.Join(strings.Repeat("k", 300)) + "\""},
		// Fair queueing.
		{"default: 9/s\nfair: {by: host}\nadapt:", `f:3:1: adapt: says nothing: write bounds, as in {min: 5/s, max: 200/s}, or {} for the usual ones, or ~ to take it away`},
		{"default: 9/s\nfair: {by: host}\nadapt: 5/s", `f:3:8: 5/s: expected a mapping, such as {min: 5/s, max: 200/s, slow: 300ms}`},
		{"default: 9/s\nfair: {by: host}\nadapt: {least: 5/s}", `f:3:9: least: unknown, expected min, max, start or slow`},
		{"default: 9/s\nfair: {by: host}\nadapt: {max: inf}", `f:3:14: adapt.max inf: expected a rate that is finite, such as 50/s or 1 per 2s`},
		{"default: 9/s\nfair: {by: host}\nadapt: {min: 5/s depth 3}", `f:3:14: adapt.min "5/s depth 3": expected only a rate, such as 50/s, 1 per 2s or inf`},
		{"default: 9/s\nfair: {by: host}\nadapt: {min: [5/s]}", `f:3:14: adapt.min "[5/s]}": expected the min, which is a single value`},
		{"default: 9/s\nfair: {by: host}\nadapt: {slow: 5}", `f:3:16: adapt.slow 5: expected a unit: ns us ms s sec min h hour d day`},
		{"default: 9/s\nfair: {by: host}\nadapt: {min: 20/s}", `f:3:1: adapt: can't be: Config.Min is 20, must be at most Max, which is 9`},
		{"default: inf\nfair: {by: host}\nadapt: {}", `f:3:1: adapt: can't be: Config.Max is 0, which means the rate of the Shaper, and that is rate.Inf: a ceiling must be finite`},
		{"default: 9/s\nadapt: {min: 1/s}", `f:2:1: adapt: stands beside fair, as there is no line for all keys otherwise whose rate could adapt`},
		{"default: 1/s\nfair: host", `f:2:7: host: expected a mapping, such as {by: header X-Team, weights: {gold: 4}}`},
		{"default: 1/s\nfair:", `f:2:1: fair: says nothing: write what makes the key of a request, as in {by: client_ip}, or ~ to take it away`},
		{"default: 1/s\nfair: {}", `f:2:7: fair "{}": by is missing, which says what makes the key of a request, such as client_ip`},
		{"default: 1/s\nfair: {by: user}", `f:2:12: fair.by user: expected client_ip, host, route or header and the name of a field, or several of these with blanks between them`},
		{"default: 1/s\nfair: {by: header a/b}", `f:2:12: fair.by "header a/b": expected client_ip, host, route or header and the name of a field, or several of these with blanks between them`},
		{"default: 1/s\nfair: {by: [host]}", `f:2:12: fair.by "[host]}": expected client_ip, host, route or header and the name of a field, or several of these with blanks between them`},
		{"default: 1/s\nfair: {by: ~}", `f:2:8: by: has no value: write one, or leave it out`},
		{"default: 1/s\nfair: {by: host, wieghts: {}}", `f:2:18: wieghts: did you mean weights?`},
		{"default: 1/s\nfair: {by: host, weights: 4}", `f:2:27: fair.weights 4: expected weights of keys, such as {gold: 4}`},
		{"default: 1/s\nfair:\n  by: host\n  weights:\n    gold: 1001\n    a//b: 0", "f:5:11: fair.weights 1001: a weight is from 1 to 1000\n" +
			"f:6:5: fair.weights a//b: an empty part is written \"-\", and a \"/\" within a part is written \"%2F\": write a/-/b or a%2F%2Fb\nf:6:11: fair.weights 0: a weight is from 1 to 1000"},
		{"default: 1/s\nfair: {weights: {a: 1, a: 2, b: 1.5, c: , d: [1]}, by: host}", "f:2:24: fair.weights a: stands on line 2 already\nf:2:33: fair.weights 1.5: expected a whole number such as 100\n" +
			"f:2:38: fair.weights c: has no weight: write a whole number from 1 to 1000\nf:2:46: fair.weights \"[1]}, by: host}\": expected a weight, which is a whole number from 1 to 1000"},
		{"default: 1/s\nfair: {weights: {a: 1, a/b: 2, a/b/c: 3}, by: header host client_ip}", "f:2:18: fair.weights a: a key of one part, but each key has 2 parts, which \"by\" says\nf:2:32: fair.weights a/b/c: a key of 3 parts, but each key has 2 parts, which \"by\" says"},
		{"fair: {by: &x host, weights: {a: *x}}", "f:1:12: fair.by \"&x\": anchors are not allowed: write it out\nf:1:34: fair.weights \"*x\": aliases are not allowed: write it out"},
		{"fair: {by: host}\nlimits: {b: 1/s, a: 1/s}", "f:1:1: fair: there is no default, which has the limits of the line that all keys share\n" +
			"f:1:1: fair: the rule a (f:2) gives keys a rate of their own, but with fair all keys share the rate of the default"},
		{"default:\n  rate: 1/s\n  candidate: 2/s\nfair: {by: host}", "f:4:1: fair: the default (f:1) has a candidate; in a dry run no request waits, so none could take turns"},
		// References.
		{"default: &a 1/s", `f:1:10: rule "default": "&a": anchors are not allowed: write it out`},
		{"limits: {a: &x 1/s, b: *x}", "f:1:13: rule \"a\": \"&x\": anchors are not allowed: write it out\nf:1:24: rule \"b\": \"*x\": aliases are not allowed: write it out"},
		{"limits: {a: !!str 1/s}", `f:1:13: rule "a": "!!str": tags are not allowed`},
		{"limits: {a: !limits 1/s}", `f:1:13: rule "a": "!limits": tags are not allowed`},
		{"limits: {! ~: 1/s, a: ! 1/s}", "f:1:10: \"!\": tags are not allowed\nf:1:23: rule \"a\": \"!\": tags are not allowed"},
		// Not YAML, not text.
		{"default: 1/s\nlimits: {a: 1/s", `f:2:9: "{a: 1/s": not YAML: did not find expected ',' or '}' (while parsing a flow mapping, line 2)`},
		{"default: 1/s\n\tlimits: 2", "f:2:1: \"limits: 2\": not YAML: found a tab character that violates indentation (while scanning a plain scalar, line 1)"},
		{"default: 1/s\nlimits: {é\xff: 1/s}", `f:2:11: byte 0xff is not UTF-8`},
		{"default: 1/s\nlimits: {é\b: 1/s}", `f:2:11: "\b": not YAML: control characters are not allowed, and this is U+0008`},
		{"default: 1/s # \x00", `f:1:16: "\x00": not YAML: control characters are not allowed, and this is U+0000`},
		{"default: 1/s\r\n#\x7f", `f:2:2: "\x7f": not YAML: control characters are not allowed, and this is U+007F`},
		{"default: 1/s\n# é\u0080", `f:2:4: "\u0080": not YAML: control characters are not allowed, and this is U+0080`},
		{"limits: {a\u009fb: 1/s}", `f:1:11: "\u009f": not YAML: control characters are not allowed, and this is U+009F`},
		{"default: 1/s\r\r\n", `f:1:13: "\r": not allowed: some programs end a line at the character U+000D, and others do not`},
		{"default: 1/s\n# \uffff", `f:2:3: "\uffff": not YAML: control characters are not allowed, and this is U+FFFF`},
	} {
		t.Run(fmt.Sprintf("%.60q", c.text), func(t *testing.T) {
			require.Equal(t, strings.Split(c.want, "\n"), mistakes(t, c.text))
		})
	}
}

func TestAllMistakesAreReportedAtOnce(t *testing.T) {
	require.Equal(t, []string{
		`f:1:1: defualt: did you mean default?`,
		`f:3:11: rule "a": rate 50/x: expected a unit: ns us ms s sec min h hour d day`,
		`f:4:3: b//c: an empty part is written "-", and a "/" within a part is written "%2F": write b/-/c or b%2F%2Fc`,
		`f:4:10: rule "b//c": rate nothing: expected a rate such as 50/s, 1 per 2s or inf`,
		`f:5:6: rule "d": "{depth: -1, burts: 3}": these limits have no rate`,
		`f:5:14: rule "d": depth -1: expected a whole number such as 100`,
		`f:5:18: rule "d": burts: did you mean burst?`,
		`f:7:13: rule "e": rate 1/w: expected a unit: ns us ms s sec min h hour d day`,
		`f:8:23: rule "e": candidate.rate 0/s: Limits.Rate is 0, must be above 0`,
	}, mistakes(t, `defualt: 5/s
limits:
  a:   50/x
  b//c:  nothing
  d: {depth: -1, burts: 3}
  e:
    rate: 1/w
    candidate: {rate: 0/s}
  f: 5/s
`))
}

func TestMistakesAsJSON(t *testing.T) {
	_, err := config.Parse("dir/f.yaml", []byte("limits:\n  ä: {rate: 1/s, burts: \"5\"}\n  b: ~x\n"+
		"  login: {rate: 1/min,  depth: -1}\n  c: {rate: 1/s, candidate: {rate: 1/s, depth: -1}}\n"))
	errs, ok := errors.AsType[config.Errors](err)
	require.True(t, ok)
	text, err := json.Marshal(errs)
	require.NoError(t, err)
	require.JSONEq(t, `[
		{"file": "dir/f.yaml", "line": 2, "column": 18, "rule": "ä", "field": "", "text": "burts", "message": "did you mean burst?"},
		{"file": "dir/f.yaml", "line": 3, "column": 6, "rule": "b", "field": "rate", "text": "~x", "message": "expected a rate such as 50/s, 1 per 2s or inf"},
		{"file": "dir/f.yaml", "line": 4, "column": 32, "rule": "login", "field": "depth", "text": "-1", "message": "expected a whole number such as 100"},
		{"file": "dir/f.yaml", "line": 5, "column": 48, "rule": "c", "field": "candidate.depth", "text": "-1", "message": "expected a whole number such as 100"}
	]`, string(text))
	one, ok := errors.AsType[*config.Error](error(errs))
	require.True(t, ok)
	require.Equal(t, "burts", one.Text)
}

func TestEditorsMarksAndLineEndsDoNoHarm(t *testing.T) {
	rules := parse(t, "\ufeffdefault: 1/s\r\nlimits:\r\n  api: 2/s\r\n")
	rule, ok := rules.Explain("api")
	require.True(t, ok)
	require.Equal(t, 3, rule.Line)
	require.Equal(t, []string{
		`f:1:12: rule "default": rate 1/x: expected a unit: ns us ms s sec min h hour d day`,
		`f:3:11: rule "api": rate 2/x: expected a unit: ns us ms s sec min h hour d day`,
	}, mistakes(t, "\ufeffdefault: 1/x\r\nlimits:\r\n  api: \"2/x\"\r\n"))
}

// To YAML 1.2 and to most editors the first line is one comment. A reader that ends it at
// such a character puts 1000/s in force.
func TestNoPartOfACommentIsARule(t *testing.T) {
	for _, c := range []string{"\r", "\u0085", "\u2028", "\u2029"} {
		message := fmt.Sprintf(": %q: not allowed: some programs end a line at the character %U, and others do not", c, []rune(c)[0])
		for text, at := range map[string]string{
			"# harmless" + c + "default: 1000/s depth 3\n":     "f:1:11",
			"default: 1/s\r\n# é" + c + "limits: {api: 1/s}\n": "f:2:4",
			"limits:\n  'é" + c + "b': 1/s\n":                  "f:2:5",
			"limits:\n  \"a" + c + "b\": 1/s\n":                "f:2:5",
			"\ufeffdefault: 1/s" + c:                           "f:1:13",
		} {
			require.Equal(t, []string{at + message}, mistakes(t, text))
		}
	}
	// A key may have one, if it is written so that everybody sees it.
	rules := parse(t, `limits: {"a\u2028b": 1/s}`)
	_, err := rules.Limits("a\u2028b")
	require.NoError(t, err)
}

// A rule for the key "default" is not the default of the file, though they may have the same mistake.
func TestTheDefaultOfTheFileIsNotTheRuleOfThatKey(t *testing.T) {
	require.Equal(t, []string{
		`f:1:12: rule "default": rate 1/x: expected a unit: ns us ms s sec min h hour d day`,
		`f:3:14: rule "/default": rate 2/x: expected a unit: ns us ms s sec min h hour d day`,
	}, mistakes(t, "default: 1/x\nlimits:\n  default: 2/x\n"))
	require.Equal(t, []string{`f:1:19: rule "/default": "&a": anchors are not allowed: write it out`}, mistakes(t, "limits: {default: &a 1/s}"))
	require.Len(t, mistakes(t, "limits: {/default: 1/s}"), 1, "it can be no key")
}

func TestPlainKeysAreTheirText(t *testing.T) {
	rules := parse(t, "limits: {404: 1/s, yes: 2/s, 1e3: 3/s, 2024-01-01: 4/s, 0x10: 5/s, '~': 6/s, \"null\": 7/s, '<<': 8/s}")
	for key, want := range map[string]float64{"404": 1, "yes": 2, "1e3": 3, "2024-01-01": 4, "0x10": 5, "~": 6, "null": 7, "<<": 8} {
		l, err := rules.Limits(key)
		require.NoError(t, err)
		require.EqualValues(t, want, l.Rate, key)
	}
}

func TestAFileIsBounded(t *testing.T) {
	filled := "default: 1/s\n#" + strings.Repeat("x", 1<<20-14)
	require.Len(t, filled, 1<<20)
	parse(t, filled)
	require.Equal(t, []string{"f: the file is larger than 1048576 bytes"}, mistakes(t, filled+"x"))

	// YAML reads a key without a value so, and the rules are counted first.
	config.LowerMaxRules(t, 3)
	require.Equal(t, []string{"f:1:16: d: a file may have 3 rules, this is one more"}, mistakes(t, "limits: {a,b,c,d,e}"))
	rules := parse(t, "limits: {a: 1/s,b: 1/s,c: 1/s}")
	require.Equal(t, []string{"f:2:34: fair.weights d: a file may have 3 weights, this is one more"}, mistakes(t, "default: 1/s\nfair: {by: host, weights: {a,b,c,d}}"))
	parse(t, "default: 1/s\nfair: {by: host, weights: {a: 1,b: 1,c: 1}}")
	_, err := rules.MarshalText()
	require.NoError(t, err)
	config.LowerMaxRules(t, 2)
	_, err = rules.MarshalText()
	require.ErrorContains(t, err, "config: 3 rules in ")
}

// An empty name is unknown like any other, wherever it stands.
func TestAnEmptyNameIsUnknown(t *testing.T) {
	for _, text := range []string{
		`{"": {api: 50/s}}`,
		`{limits: {api: 1/s}, "": {api: 100/s}}`,
		`default: {rate: 5/s, "": garbage}`,
	} {
		_, err := config.Parse("f", []byte(text))
		require.ErrorContains(t, err, "unknown", text)
	}
}

// manyOf returns a text as often as that, each with its number.
func manyOf(n int, format string) string {
	var all strings.Builder
	for i := range n {
		fmt.Fprintf(&all, format, i)
	}
	return all.String()
}

// None of these may take long or much memory, whatever it says.
func TestAHostileFileIsRefusedQuickly(t *testing.T) {
	t.Parallel()
	aliases := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c <= 'z'; c++ {
		aliases += fmt.Sprintf("%c: &%c [*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c]\n", c, c, c-1, c-1, c-1, c-1, c-1, c-1, c-1, c-1, c-1)
	}
	entries := 3000
	if long {
		entries = 45_000
	}
	for name, text := range map[string]string{
		"aliases":       aliases,
		"own alias":     "limits: &a {a: *a}",
		"flow depth":    strings.Repeat("[", 1<<20),
		"mapping depth": strings.Repeat("{a: ", 1<<18),
		"block depth":   strings.Repeat("- ", 1<<19),
		"list":          "limits: [" + strings.Repeat("a,", entries) + "a]",
		"one word":      strings.Repeat("x", 1<<17),
		"one key":       "limits: {? " + strings.Repeat("a/", 1<<16) + "b : 1/s}",
		"percents":      "limits: {? " + strings.Repeat("%", 1<<20-20) + " : 1/s}",
		"mistakes":      "limits: {" + manyOf(entries, "a%d: x, ") + "}",
		"no rules":      "limits: {" + manyOf(entries, "a%d: {}, ") + "}",
		"one name":      "{? " + strings.Repeat("é", 1<<16) + " : 1/s}",
	} {
		t.Run(name, func(t *testing.T) {
			rules, err := config.Parse("f", []byte(text))
			if name == "one key" { // It is one rule with 65,536 parts.
				require.NoError(t, err)
				_, err = rules.Limits(strings.Repeat("a/", 1<<20))
				require.ErrorIs(t, err, config.ErrNoRule)
				return
			}
			require.Error(t, err)
			for _, line := range strings.Split(err.Error(), "\n") {
				require.Less(t, len(line), 1000)
			}
		})
	}
}

// Editors and generators that know YAML 1.2 write its number at the head of a file.
func TestAFileMayBeginWithItsVersionOfYAML(t *testing.T) {
	want := parse(t, "default: 1/s depth 3")
	for _, head := range []string{
		"%YAML 1.2\n---\n", "%YAML 1.2\r\n---\r\n", "\ufeff%YAML\t1.2 # the version\n---\n", "# a comment\n\n \t\n%TAG !e! tag:example.com:\n%YAML 1.2\n# more\n---\n",
		"%YAML 1.1\n---\n",
	} {
		require.Equal(t, without(want), without(parse(t, head+"default: 1/s depth 3\n...\n")), "%q", head)
	}
	for text, want := range map[string]string{
		"%YAML 1.2\n---\ndefault: 1/x":                  `f:3:12: rule "default": rate 1/x: expected a unit: ns us ms s sec min h hour d day`,
		"%YAML 2.0\n---\ndefault: 1/s":                  `f:1:1: "%YAML 2.0": not YAML: found incompatible YAML document`,
		"%YAML 1.21\n---\ndefault: 1/s":                 `f:1:1: "%YAML 1.21": not YAML: found incompatible YAML document`,
		"default: 1/s\n...\n%YAML 1.2\n---\nlimits: {}": `f:3:1: "%YAML 1.2": not YAML: found incompatible YAML document`,
		"limits:\n  a: 1/s\n%YAML 1.2\n":                `f:3:1: "%YAML 1.2": not YAML: did not find expected <document end> before directive`,
	} {
		require.Equal(t, []string{want}, mistakes(t, text), "%q", text)
	}
}

package main

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/config"
)

// codesOf returns the codes of the warnings about a file with one rule.
func codesOf(t *testing.T, key, limits string) (codes []string) {
	t.Helper()
	rules, err := config.Parse("f.yaml", []byte("limits:\n  "+key+": "+limits))
	require.NoError(t, err)
	for rule := range rules.All() {
		for _, w := range warningsOf(rule) {
			codes = append(codes, w.Code)
		}
	}
	return codes
}

func TestWhatIsWarnedOf(t *testing.T) {
	for limits, want := range map[string][]string{
		"50/s":            {"refuses-second"},
		"50/s burst 1":    {"refuses-second"},
		"50/s burst 2":    nil,
		"50/s depth 1":    nil,
		"50/s inflight 3": {"refuses-second"},
		"inf":             nil,
		"inf inflight 3":  nil,
		"inf depth 3":     nil,

		"50/s depth 3 wait 19ms":                    {"wait-too-short"},
		"50/s depth 3 wait 20ms":                    nil,
		"50/s burst 9 depth 3 wait 19ms":            {"wait-too-short"},
		"50/s burst 9 depth 3 wait 19ms inflight 4": nil, // Three wait for seats, not for the rate.
		"50/s burst 2 wait 1s":                      {"wait-without-depth"},
		"50/s burst 2 slack 1s":                     {"slack-without-depth"},
		"50/s depth 3 wait 1s slack 1001ms":         {"slack-long"},
		"50/s depth 3 wait 1s slack 1s":             nil,
		"50/s depth 3 slack 1h":                     nil,

		"inf burst 3":          {"no-effect"},
		"inf depth 3 slack 1s": {"no-effect"},

		"{rate: 50/s, depth: 3, candidate: 20/s}":                            {"refuses-second"},
		"{rate: 50/s, depth: 3, candidate: 20/s depth 3 inflight 3}":         {"no-effect"},
		"{rate: 50/s, depth: 3, candidate: 50/s depth 3 burst 1 slack 20ms}": {"same-candidate"},
		"{rate: 50/s, depth: 3, candidate: 50/s depth 4}":                    nil,
	} {
		require.Equal(t, want, codesOf(t, "api", limits), limits)
	}
}

// Each of these rules is one that its author will look for in vain.
func TestKeysThatSayWhatIsNotMeant(t *testing.T) {
	const limits = ": 50/s depth 3\n"
	for text, want := range map[string]string{
		"  default" + limits:            "default: this is the rule of the key default: the rule of all other keys stands beside limits, not below it",
		"  default/api" + limits:        "",
		"  '*'" + limits:                "*: there are no wildcards: the rule of all such keys is default, beside limits",
		"  'api/*'" + limits:            "api/*: there are no wildcards: the rule of all such keys is api",
		"  'api/*/orders'" + limits:     "api/*/orders: there are no wildcards: the rule of all such keys is api",
		"  'api*'" + limits:             "api*: there are no wildcards: a rule is for a whole part of a key, and for all keys below it",
		"  'a*b'" + limits:              "",
		"  'GET %2Ffiles%2F*'" + limits: "",
		"  'OPTIONS *'" + limits:        "",
		"  'login '" + limits:           `"login ": a blank at an end is part of the key, and hardly any key has one`,
		"  \"\\tapi/x\"" + limits:       `"\tapi/x": a blank at an end is part of the key, and hardly any key has one`,
		"  'api /x'" + limits:           "api /x: a blank at an end is part of the key, and hardly any key has one",
		"  'POST login'" + limits:       "",
	} {
		path := file(t, "f.yaml", "limits:\n"+text)
		status, _, problems := shapecheck(t, "", path)
		require.Equal(t, exitOK, status, problems)
		if want != "" {
			want = path + ":2: warning: " + want + "\n"
		}
		require.Equal(t, want, problems, text)
	}
}

func TestAddressesThatNoKeyHas(t *testing.T) {
	for key, want := range map[string]string{
		"192.0.2.1":            "",
		"api/192.0.2.1":        "",
		"api/192.0.2.1/7":      "keys have addresses of IPv4 clients, not networks, and 192.0.2.1/7 is compared as a text",
		"192.0.2.0/24":         "keys have addresses of IPv4 clients, not networks, and 192.0.2.0/24 is compared as a text",
		"api/192.0.2.0%2F24":   "keys have addresses of IPv4 clients, not networks, and 192.0.2.0/24 is compared as a text",
		"api/192.0.2.1/99":     "",
		"api/192.0.2.1/orders": "",
		"api/2001:db8::%2F64":  "",
		"2001:db8::/64":        "", // ClientIP.Key alone makes it.
		"api/2001:db8::/64":    "among other parts of a key, a network is written 2001:db8::%2F64",
		"api/2001:db8::1%2F64": "keys have this network as 2001:db8::%2F64",
		"api/2001:0db8::%2F64": "keys have this network as 2001:db8::%2F64",
		"api/2001:DB8::1":      "keys have this address as 2001:db8::1",
		"api/::ffff:192.0.2.1": "keys have this address as 192.0.2.1",
		"api/fe80::1%25eth0":   "keys have this address as fe80::1",
		"api/2001:db8::1":      "",
		"api/premium":          "",
		"api/1.2/3":            "",
		"api/100%25":           "",
	} {
		require.Equal(t, want, addressProblem(key), key)
	}
}

func TestATakenRuleIsThere(t *testing.T) {
	layer := func(text string) config.Layer { return config.Layer{Text: []byte(text)} }
	base := layer("default: 1/s depth 3\nlimits: {api: 1/s depth 3, fair: 1/s}\n")
	local := layer("default: ~\nlimits:\n  api: null\n  api2: ~\n  'x y':\n    null\n")
	again := layer("limits: {api: ~}\nfair: ~\n")
	var lines []int
	for _, w := range takenInVain([]config.Layer{base, local, again}) {
		require.Equal(t, "takes-nothing", w.Code)
		lines = append(lines, w.Line)
	}
	require.Equal(t, []int{4, 5, 1, 2}, lines)
	require.Len(t, takenInVain([]config.Layer{local}), 4)
	fair := layer("fair: {by: host}")
	require.Empty(t, takenInVain([]config.Layer{base, fair, layer("fair: ~")}))
	require.Len(t, takenInVain([]config.Layer{base, fair, layer("fair: ~"), layer("fair: ~")}), 1)
}

// Each of these weights is one that its author will look for in vain.
func TestWeightsThatSayWhatIsNotMeant(t *testing.T) {
	for weight, want := range map[string]string{
		"gold: 1":                  "gold: the weight is 1, which every key has",
		"'*': 2":                   "*: there are no wildcards: a weight is that of one whole key",
		"'gold ': 2":               `"gold ": a blank at an end is part of the key, and hardly any key has one`,
		"default: 2":               "default: this is the weight of the key default: keys that are not named have the weight 1",
		"192.0.2.0%2F24: 2":        "192.0.2.0%2F24: keys have addresses of IPv4 clients, not networks, and 192.0.2.0/24 is compared as a text",
		"2001:0DB8::%2F64: 2":      "2001:0DB8::%2F64: keys have this network as 2001:db8::%2F64",
		"2001:db8::%2F64: 2":       "",
		"'GET %2Ffiles%2F*': 1000": "",
	} {
		path := file(t, "f.yaml", "default: 1/s depth 9\nfair:\n  by: host\n  weights:\n    "+weight)
		status, _, problems := shapecheck(t, "", path)
		require.Equal(t, exitOK, status, problems)
		if want != "" {
			want = path + ":5: warning: " + want + "\n"
		}
		require.Equal(t, want, problems, weight)
	}
}

func TestWeightsOfKeysThatAreNotInUse(t *testing.T) {
	path := file(t, "f.yaml", "default: 1/s depth 9\nfair: {by: host route, weights: {a/b: 2, a/c: 2}}")
	_, _, problems := shapecheck(t, "a/c\n", path, "-keys", "-")
	require.Equal(t, path+":2: warning: a/b: never reached: there is no such key\n", problems)
}

func TestAKeyThatJoinDoesNotMake(t *testing.T) {
	require.Empty(t, keyWarnings("POST %2Flogin/192.0.2.1"))
	require.Empty(t, keyWarnings("\x00\u2028é"))
	for key, want := range map[string]string{
		"100%":   "write 100%25",
		"/login": "write -/login or %2Flogin",
	} {
		all := keyWarnings(key)
		require.Len(t, all, 1)
		require.Contains(t, all[0].Message, "shaper.Join makes no such key: ")
		require.Contains(t, all[0].Message, want)
		require.Equal(t, key, all[0].Key)
	}
}

// Whoever reads the output by a program goes by the list of codes.
func TestAllCodesAreDocumented(t *testing.T) {
	main, err := os.ReadFile("main.go")
	require.NoError(t, err)
	warnings, err := os.ReadFile("warnings.go")
	require.NoError(t, err)
	var made []string
	for _, m := range regexp.MustCompile(`(?:warn\(|rule\.Key, |e\.key, |w\.Key, |Code: )"([a-z-]+)"`).FindAllSubmatch(warnings, -1) {
		made = append(made, string(m[1]))
	}
	slices.Sort(made)
	made = slices.Compact(made)
	var listed []string
	for _, m := range regexp.MustCompile(`(?m)^//\t([a-z]+-[a-z-]+|address|blank|wildcard)(?:, ([a-z-]+)$)?`).FindAllSubmatch(main, -1) {
		for _, code := range m[1:] {
			if len(code) > 0 {
				listed = append(listed, string(code))
			}
		}
	}
	slices.Sort(listed)
	require.Equal(t, made, listed)
	require.Len(t, made, 14)
}

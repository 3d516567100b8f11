package config_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"

	"example.com/leakybucket/config"
)

// schema returns schema.json, which editors compare files with.
var schema = sync.OnceValue(func() *jsonschema.Schema {
	text, err := os.ReadFile("schema.json")
	if err != nil {
		panic(err)
	}
	parsed, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		panic(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("schema.json", parsed); err != nil {
		panic(err)
	}
	return c.MustCompile("schema.json")
})

// beyondSchema are the mistakes, by their messages, that Parse finds and the schema does
// not. With each stands a file that has it.
var beyondSchema = []struct{ why, message, example string }{
	{"a pattern cannot compare numbers", `Limits\.Rate is \S+, must be at (least 1 per 365 days|most 1e9 per second \(or rate\.Inf\))`, "default: 1/s burst 3 wait 1s\nlimits: {a: 2000000000/s, b: 1 per 366d}"},
	{"a pattern cannot multiply", `Limits\.Burst is \d+, which at Limits\.Rate \S+ takes more than 365 days to drain`, "default: {rate: 1 per 200d, burst: 2}"},
	{"a pattern cannot compare numbers", `expected a burst below \d+, which is how many may leave in \S+`, "default: 20 in 1min burst 20\nlimits: {a: {rate: 20 in 1min, burst: 30}}"},
	{"a pattern cannot compare numbers", `expected a whole number up to \d+`, "default: 1/s depth 9223372036854775808"},
	{"a pattern cannot compare numbers", `expected whole nanoseconds, at most 292 years of them`, "limits: {a: 1 per 0.5ns, b: 1/s wait 200000d}"},
	{"of a number the schema sees the value, not the digits", `expected a whole number such as 100`, "default: {rate: 1/s, burst: 0x10, depth: 5.0}"},
	{"of a number the schema sees the value, not the digits", `a 0 in front makes it octal for some: write \d+`, "default: {rate: 1/s, burst: 007}"},
	{"of a null the schema does not see whether it is written", `has no limits: write some, such as 50/s depth 100, or ~ to take the rule away`, "default:"},
	{"a pattern counts characters, not bytes", `of a part longer than 256 bytes a key has the beginning and a hash: write .*`, "limits: {" + strings.Repeat("é", 129) + ": 1/s}"},
	{"the schema sees values, not how their lines end", `not allowed: some programs end a line at the character \S+, and others do not`, "\ufeffdefault: 1/s # \u0085\u2028\u2029\r"},
	{"the schema sees no comments", `not YAML: control characters are not allowed, and this is \S+`, "default: 1/s # \x7f\u0080"},
	{"the schema sees one file, and the default may stand in another", `there is no default, which has the limits of the line that all keys share`, "fair: {by: host}"},
	{"the schema sees one file, and another may take rules away", `the default \(f:\d+\) has a candidate; .*|the rule .* \(f:\d+\) gives keys a rate of their own, .*`, "default: {rate: 1/s, candidate: 2/s}\nlimits: {a: 1/s}\nfair: {by: host}"},
	{"a pattern does not count the parts of another text", `a key of \S+ parts?, but each key has \S+ parts?, which "by" says`, "default: 1/s\nfair: {by: host route, weights: {a: 2, a/b/c: 2}}"},
	{"of a null the schema does not see whether it is written", `says nothing: write what makes the key of a request, as in .*`, "fair:"},
	{"the schema sees one file, and fair may stand in another", `stands beside fair, as there is no line for all keys otherwise whose rate could adapt`, "default: 1/s\nadapt: {}"},
	{"a pattern cannot compare numbers", `can't be: .*`, "default: 5/s\nfair: {by: host}\nadapt: {min: 6/s}"},
	{"of a null the schema does not see whether it is written", `says nothing: write bounds, as in .*`, "default: 1/s\nfair: {by: host}\nadapt:"},
	{"the schema does not see the size", `the file is larger than \d+ bytes`, "default: 1/s\n#" + strings.Repeat("x", 1<<20)},
}

// beyond matches one of these messages.
var beyond = func() *regexp.Regexp {
	var all []string
	for _, b := range beyondSchema {
		all = append(all, b.message)
	}
	return regexp.MustCompile(`^(?:` + strings.Join(all, "|") + `)$`)
}()

// valueOf returns the JSON value that a YAML text stands for. It is an error if there is
// none, or if two texts that Parse tells apart are the same value: duplicate keys,
// several documents, anchors, aliases, tags and merged mappings.
func valueOf(text []byte) (any, error) {
	text = bytes.ReplaceAll(text, []byte("%YAML 1.2"), []byte("%YAML 1.1")) // The reader knows no newer version.
	loader, err := yaml.NewLoader(bytes.NewReader(bytes.TrimPrefix(text, []byte("\uFEFF"))))
	if err != nil {
		return nil, err
	}
	var document, second yaml.Node
	if err := loader.Load(&document); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, nil // An empty file is null.
		}
		return nil, err
	}
	if err := loader.Load(&second); !errors.Is(err, io.EOF) {
		return nil, errors.New("several documents")
	}
	if len(document.Content) == 0 {
		return nil, nil
	}
	return valueOfNode(document.Content[0])
}

func valueOfNode(n *yaml.Node) (any, error) {
	if n.Kind == yaml.AliasNode || n.Anchor != "" || n.Style&yaml.TaggedStyle != 0 {
		return nil, errors.New("a reference or a tag")
	}
	switch n.Kind {
	case yaml.MappingNode:
		object := map[string]any{}
		for i := 0; i < len(n.Content); i += 2 {
			key := n.Content[i]
			if _, err := valueOfNode(key); err != nil {
				return nil, err
			}
			_, twice := object[key.Value]
			if twice || key.Kind != yaml.ScalarNode || key.ShortTag() == "!!null" || key.Tag == "!!merge" {
				return nil, errors.New("a key that no JSON object has")
			}
			value, err := valueOfNode(n.Content[i+1])
			if err != nil {
				return nil, err
			}
			object[key.Value] = value
		}
		return object, nil
	case yaml.SequenceNode:
		array := []any{}
		for _, element := range n.Content {
			value, err := valueOfNode(element)
			if err != nil {
				return nil, err
			}
			array = append(array, value)
		}
		return array, nil
	}
	switch n.ShortTag() {
	case "!!null":
		return nil, nil
	case "!!bool":
		return strings.EqualFold(n.Value, "true"), nil
	case "!!int", "!!float":
		var number any
		if err := n.Decode(&number); err != nil {
			return nil, err
		}
		// NaN and the infinities are numbers that JSON has not; as texts they are wrong
		// everywhere too.
		written, err := json.Marshal(number)
		if err != nil {
			return n.Value, nil
		}
		return json.Number(written), nil
	}
	return n.Value, nil
}

// requireSchemaAgrees requires that the schema accepts a file if Parse does, and refuses it
// if Parse does, unless all that Parse refuses is beyond the schema.
func requireSchemaAgrees(t *testing.T, text []byte) (accepted bool) {
	t.Helper()
	_, err := config.Parse("f", text)
	value, noValue := valueOf(text)
	if noValue != nil {
		require.Error(t, err, "%v in %q", noValue, text)
		return false
	}
	mismatch := schema().Validate(value)
	if err == nil {
		require.NoError(t, mismatch, "%q", text)
		return true
	}
	if mismatch == nil {
		for _, one := range err.(config.Errors) {
			require.True(t, beyond.MatchString(one.Message), "the schema accepts %q, and Parse says: %v", text, one)
		}
	}
	return false
}

func TestTheSchemaIsASchema(t *testing.T) {
	text, err := os.ReadFile("schema.json")
	require.NoError(t, err)
	parsed, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(t, err)
	meta, err := jsonschema.NewCompiler().Compile("https://json-schema.org/draft/2020-12/schema")
	require.NoError(t, err)
	require.NoError(t, meta.Validate(parsed))
}

// The list beyondSchema has the mistakes that an editor does not show. A line of it
// that is no longer needed would hide a disagreement.
func TestWhatIsBeyondTheSchema(t *testing.T) {
	for _, b := range beyondSchema {
		_, err := config.Parse("f", []byte(b.example))
		require.Error(t, err, b.example)
		value, err2 := valueOf([]byte(b.example))
		require.NoError(t, err2)
		require.NoError(t, schema().Validate(value), "%s: %.100q", b.why, b.example)
		for _, one := range err.(config.Errors) {
			require.Regexp(t, "^(?:"+b.message+")$", one.Message)
		}
	}
}

func TestTheSchemaAgreesWithParse(t *testing.T) {
	for text, want := range map[string]bool{
		example: true,
		"# yaml-language-server: $schema=schema.json\n" + example: true,
		"limits: {}":                            true,
		"default: ~":                            true,
		"{}":                                    false,
		"limits: []":                            false,
		"limits:":                               false,
		"limit: {}":                             false,
		"default: 50":                           false,
		"default: 50/s burst 1 depth 2 burst 3": false,
		"default: {rate: 50/s, candidate: {rate: 1/s, candidate: 2/s}}":                      false,
		"default: {rate: 50/s, candidate: ~}":                                                false,
		"limits: {a: {depth: 3}}":                                                            false,
		"limits: {a: " + strings.Repeat("1", 1023) + "/s}":                                   false,
		"default: {rate: 1/s, wait: " + strings.Repeat("0", 1000) + "1s}":                    true,
		"default: {rate: 1/s, wait: " + strings.Repeat("0", 1023) + "1s}":                    false,
		"default: {rate: 1/s, depth: 9223372036854775807}":                                   true,
		"default: {rate: 1/s, depth: 9223372036854775808}":                                   false,
		"limits: {" + strings.Repeat("k", 256) + ": 1/s}":                                    true,
		"limits: {" + strings.Repeat("k", 257) + ": 1/s}":                                    false,
		"limits: {? '" + strings.Repeat("%25", 256) + "/a' : 1/s}":                           true,
		"limits: {" + strings.Repeat("k", 192) + "~" + strings.Repeat("0a", 32) + "/b: 1/s}": true,
		"fair: ~":                          true,
		"default: 1/s\nfair: {by: route}":  true,
		"default: 1/s\nfair: {by: header}": false,
		"default: 1/s\nlimits: {}\nfair: {by: \"client_ip header\\t#x host\", weights: {a/b/-: 1000, a%2F/b/%2D: 1}}": true,
		"default: 1/s\nfair: {weights: {a: 1}}":                              false,
		"default: 1/s\nfair: {by: host, weight: {a: 1}}":                     false,
		"default: 1/s\nfair: {by: host, weights: {a: 1001}}":                 false,
		"default: 1/s\nfair: {by: host, weights: {a: 0}}":                    false,
		"default: 1/s\nfair: {by: host, weights: {/: 1}}":                    false,
		"default: 1/s\nfair: {by: host" + strings.Repeat(" host", 204) + "}": true,
		"default: 1/s\nfair: {by: host" + strings.Repeat(" host", 205) + "}": false,
		"default: 1/s burst 1 burst 1":                                       false,
		"default: 2 in 1min":                                                 true,
		"default: 1 in 1min":                                                 false,
		"default: 10 in 0s":                                                  false,
		"default: 2.5 in 1min":                                               false,
		"default: \"10, 20 in 1min\"":                                        false,
		"default: {rate: \"0010\\tin 1.5h\", burst: 9, slack: 2s, depth: 3}": true,
		"default: {rate: 10 in 1min burst 2}":                                false,
		"default: {rate: '10 in 1min '}":                                     false,
		"default: {rate: ' 10 in 1min'}":                                     false,
		"%YAML 1.2\n---\ndefault: 1/s":                                       true,
		"default: 1/s depth 1 wait 1s depth 1":                               false,
		"default: 1/s wait 1s wait 1s":                                       false,
		"default: 1/s slack 1s slack 1s":                                     false,
		"default: 1/s inflight 1 inflight 1":                                 false,
		"default: 1/s burst 1 depth 1 wait 1s slack 1s inflight 1":           true,
	} {
		require.Equal(t, want, requireSchemaAgrees(t, []byte(text)), "%.100q", text)
		value, err := valueOf([]byte(text))
		require.NoError(t, err)
		require.Equal(t, want, schema().Validate(value) == nil, "%.100q", text)
	}
}

func TestTheSchemaBoundsTheNumberOfRules(t *testing.T) {
	top := schema().Properties
	require.Equal(t, 100_000, config.MaxRules())
	require.Equal(t, 100_000, *top["limits"].MaxProperties)
	require.Equal(t, 100_000, *top["fair"].Properties["weights"].MaxProperties)
}

// A generated file is mostly right, and has a mistake here and there.
func TestTheSchemaAgreesWithParseOnGeneratedFiles(t *testing.T) {
	t.Parallel()
	files := 1000
	if long {
		files = 300_000
	}
	accepted := 0
	for seed := range files {
		g := generator{rand.New(rand.NewPCG(uint64(seed), 13))}
		if requireSchemaAgrees(t, []byte(g.file())) {
			accepted++
		}
	}
	require.Greater(t, accepted, files/5)
	require.Less(t, accepted, files*4/5)
}

// A generator writes files.
type generator struct{ *rand.Rand }

func (g generator) of(words ...string) string { return words[g.IntN(len(words))] }

// mostly returns one of the right words, or one time in forty any of the wrong ones.
func (g generator) mostly(right []string, wrong ...string) string {
	if g.IntN(40) == 0 {
		return g.of(wrong...)
	}
	return g.of(right...)
}

func (g generator) file() string {
	var fields []string
	if g.IntN(3) > 0 {
		fields = append(fields, g.mostly([]string{"default", `"default"`}, "defualt", "Default", "")+": "+g.rule())
	}
	if g.IntN(4) > 0 {
		var rules []string
		for range g.IntN(4) {
			rules = append(rules, g.key()+": "+g.rule())
		}
		fields = append(fields, g.mostly([]string{"limits", "limits"}, "limit", "rules")+": "+g.mostly([]string{"{" + strings.Join(rules, ", ") + "}"}, "[]", "~", "x", "3"))
	}
	if g.IntN(4) == 0 {
		fields = append(fields, g.mostly([]string{"fair"}, "fare", "Fair", "unfair")+": "+g.mostly([]string{g.fair(), g.fair(), "~"}, "", "host", "[]", "true"))
	}
	if g.IntN(4) == 0 {
		fields = append(fields, g.mostly([]string{"adapt"}, "adopt", "Adapt")+": "+g.mostly([]string{g.adapt(), g.adapt(), "~", "{}"}, "", "5/s", "[]", "true"))
	}
	return "{" + strings.Join(fields, ", ") + "}"
}

// adapt returns what stands behind the word adapt.
func (g generator) adapt() string {
	var fields []string
	for _, name := range []string{"min", "max", "start", "slow"} {
		if g.IntN(2) == 0 {
			continue
		}
		right := []string{"5/s", "1 per 2s", "0.5/min"}
		if name == "slow" {
			right = []string{"300ms", "1.5s", "0s"}
		}
		fields = append(fields, g.mostly([]string{name}, "least", "mix", "Max")+": "+g.mostly(right, "inf", "100 in 1min", "5/s burst 2", "5", "~", "", "x", "[1]", "0/s", "-1/s"))
	}
	g.Shuffle(len(fields), func(i, j int) { fields[i], fields[j] = fields[j], fields[i] })
	return "{" + strings.Join(fields, ", ") + "}"
}

// fair returns what stands behind the word fair.
func (g generator) fair() string {
	parts := g.of("host", "client_ip route", "header X-Team", "header\tX-Team  header X-User host")
	fields := []string{g.mostly([]string{"by"}, "By", "buy", "key") + ": " + g.mostly([]string{parts}, "header", "user", "7", "~", "", "[host]", "host,route", "'host '", "header a:b")}
	if g.IntN(3) > 0 {
		var weights []string
		for range g.IntN(3) {
			weights = append(weights, g.key()+": "+g.mostly([]string{"1", "4", "1000"}, "0", "1001", "-1", "1.5", "2.0", "x", "'3'", "~", "", "007", "[1]", "99999999999999999999"))
		}
		fields = append(fields, g.mostly([]string{"weights"}, "weight", "shares")+": "+g.mostly([]string{"{" + strings.Join(weights, ", ") + "}"}, "[]", "~", "4", ""))
	}
	g.Shuffle(len(fields), func(i, j int) { fields[i], fields[j] = fields[j], fields[i] })
	return "{" + strings.Join(fields, ", ") + "}"
}

func (g generator) key() string {
	var parts []string
	for range 1 + g.IntN(3) {
		parts = append(parts, g.mostly([]string{"api", "v2", "-", "%2D", "a b", "é", "100%25", "x%2Fy", "404", "192.0.2.1", "-%2F-"},
			"", "%", "a%2fb", "%41", "%zz", "a%2D", "%25%", strings.Repeat("k", 250+g.IntN(10))))
	}
	return `"` + strings.Join(parts, "/") + `"`
}

func (g generator) rule() string {
	switch g.IntN(12) {
	case 0:
		return g.mostly([]string{"~", "null"}, "", "true", "7", "1.5", "[1/s]", ".inf", "2024-01-01")
	case 1, 2, 3, 4:
		return g.mapping(true)
	default:
		return g.text()
	}
}

func (g generator) number() string {
	return g.mostly([]string{"1", "50", "0.5", "2.25", "007", "100"}, "0", "0.0", ".5", "5.", "-1", "1e3", "1_0", "+1", "", "1,5")
}

func (g generator) duration() string {
	return g.number() + g.mostly([]string{"s", "ms", "min", "h", "us", "sec", "d", "hour", "day"}, "", "m", "S", "w", " s", "µs")
}

func (g generator) rate() string {
	switch g.IntN(5) {
	case 0:
		return g.mostly([]string{"inf"}, "Inf", "inf/s", ".inf", "none")
	case 1:
		return g.number() + " " + g.mostly([]string{"per"}, "each", "/") + " " + g.duration()
	case 2:
		return g.mostly([]string{"2", "50", "0100"}, "1", "0", "2.5", "001", "-2", "") + " " + g.mostly([]string{"in"}, "In", "within") + " " + g.duration()
	default:
		return g.number() + "/" + g.mostly([]string{"s", "sec", "min", "h", "d"}, "", "x", " s", "S")
	}
}

// text returns limits as a text, which needs no quotes.
func (g generator) text() string {
	if g.IntN(8) == 0 {
		return `"` + g.mostly([]string{"10", "3"}, "x", "1.5") + g.mostly([]string{", ", ",  "}, ",", " ,") + g.rate() + g.mostly([]string{""}, " depth 3") + `"`
	}
	words := []string{g.rate()}
	names := []string{"burst", "depth", "wait", "slack", "inflight"}
	g.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, name := range names[:g.IntN(4)] {
		value := g.mostly([]string{"1", "20", "0", "012"}, "-1", "1.5", "x", "")
		if name == "wait" || name == "slack" {
			value = g.duration()
		}
		words = append(words, g.mostly([]string{name}, "dept", "Burst", "burst", "depth"), value)
	}
	text := strings.Join(words, g.mostly([]string{" ", " ", "  "}, "\t", ", "))
	if g.IntN(4) == 0 {
		return `"` + text + g.mostly([]string{""}, " ") + `"`
	}
	return text
}

func (g generator) mapping(mayHaveCandidate bool) string {
	fields := []string{g.mostly([]string{"rate"}, "Rate", "rat", "speed") + ": " + g.mostly([]string{g.rate()}, g.text(), "50", "~", "")}
	for _, name := range []string{"burst", "depth", "inflight"} {
		if g.IntN(3) == 0 {
			fields = append(fields, g.mostly([]string{name}, "burts", "rate", "depth")+": "+g.mostly([]string{"1", "20", "0"}, "-1", "1.5", "x", "'5'", "~", "0x10", "1_000", "010", "5.0", "1e2", "", "[1]"))
		}
	}
	for _, name := range []string{"wait", "slack"} {
		if g.IntN(3) == 0 {
			fields = append(fields, name+": "+g.mostly([]string{g.duration()}, "2", "0", "~", "2s depth 3", "[]"))
		}
	}
	if mayHaveCandidate && g.IntN(3) == 0 || g.IntN(30) == 0 {
		candidate := g.text()
		if g.IntN(2) == 0 {
			candidate = g.mapping(false)
		}
		fields = append(fields, "candidate: "+g.mostly([]string{candidate}, "~", "", "3"))
	}
	g.Shuffle(len(fields), func(i, j int) { fields[i], fields[j] = fields[j], fields[i] })
	if g.IntN(30) == 0 {
		fields = slices.Repeat(fields, 2)
	}
	return "{" + strings.Join(fields, ", ") + "}"
}

package shaper_test

import (
	"errors"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

var wellFormed = []struct {
	text string
	want shaper.Limits
}{
	{"50/s", shaper.Limits{Rate: 50}},
	{"10/min", shaper.Limits{Rate: 10.0 / 60}},
	{"20/min", shaper.Limits{Rate: 20.0 / 60}},
	{"1 per 2s", shaper.Limits{Rate: 0.5}},
	{"1 per 3s", shaper.Limits{Rate: rate.Every(3 * time.Second)}},
	{"50/s burst 10 depth 100 wait 2s slack 10ms", shaper.Limits{
		Rate: 50, Burst: 10, Depth: 100, MaxWait: 2 * time.Second, Slack: 10 * time.Millisecond}},
	{"50/s slack 10ms wait 2s depth 100 burst 10", shaper.Limits{
		Rate: 50, Burst: 10, Depth: 100, MaxWait: 2 * time.Second, Slack: 10 * time.Millisecond}},
	{"50/s depth 100 inflight 8", shaper.Limits{Rate: 50, Depth: 100, InFlight: 8}},
	{"50/s inflight 8 wait 2s burst 3 slack 1ms depth 4", shaper.Limits{
		Rate: 50, Burst: 3, Depth: 4, MaxWait: 2 * time.Second, Slack: time.Millisecond, InFlight: 8}},
	{"inf inflight 1", shaper.Limits{Rate: rate.Inf, InFlight: 1}},
	{"1/s inflight 0", shaper.Limits{Rate: 1}},
	{"inf", shaper.Limits{Rate: rate.Inf}},
	{"inf depth 3", shaper.Limits{Rate: rate.Inf, Depth: 3}},

	// The form of the seed document.
	{"10, 1/sec", shaper.Limits{Rate: 1, Burst: 10}},
	{"10, \t 1 per 2min", shaper.Limits{Rate: 1.0 / 120, Burst: 10}},
	{"0, inf", shaper.Limits{Rate: rate.Inf}},

	// These promise what Window does: the slack is written out, and goes into the rate as the burst does.
	{"100 in 1min burst 20", shaper.Limits{Rate: 80 / 60.02, Burst: 20, Slack: shaper.DefaultSlack}},
	{"100 in 1min", shaper.Limits{Rate: 99 / 60.02, Slack: shaper.DefaultSlack}},
	{"100 in 1min slack 0s burst 0", shaper.Limits{Rate: 99 / 60.02, Slack: shaper.DefaultSlack}},
	{"0100\tin  1.5h slack 2s wait 3s burst 20 inflight 4 depth 5", shaper.Limits{
		Rate: 80.0 / 5402, Burst: 20, Depth: 5, MaxWait: 3 * time.Second, Slack: 2 * time.Second, InFlight: 4}},
	{"1000000000 in 1d slack 106751d", shaper.Limits{Rate: 999999999. / (106752 * 86400), Slack: 106751 * day}},

	// These are the units of rates, then the units of durations.
	{"1/ns", shaper.Limits{Rate: 1e9}},
	{"1/us", shaper.Limits{Rate: 1e6}},
	{"1/ms", shaper.Limits{Rate: 1e3}},
	{"1/s", shaper.Limits{Rate: 1}},
	{"1/sec", shaper.Limits{Rate: 1}},
	{"1/min", shaper.Limits{Rate: 1.0 / 60}},
	{"1/h", shaper.Limits{Rate: 1.0 / 3600}},
	{"1/hour", shaper.Limits{Rate: 1.0 / 3600}},
	{"1/d", shaper.Limits{Rate: 1.0 / 86400}},
	{"1/day", shaper.Limits{Rate: 1.0 / 86400}},
	{"1/s wait 1ns slack 1us", shaper.Limits{Rate: 1, MaxWait: 1, Slack: time.Microsecond}},
	{"1/s wait 1ms slack 1s", shaper.Limits{Rate: 1, MaxWait: time.Millisecond, Slack: time.Second}},
	{"1/s wait 1sec slack 1min", shaper.Limits{Rate: 1, MaxWait: time.Second, Slack: time.Minute}},
	{"1/s wait 1h slack 1hour", shaper.Limits{Rate: 1, MaxWait: time.Hour, Slack: time.Hour}},
	{"1/s wait 1d slack 1day", shaper.Limits{Rate: 1, MaxWait: day, Slack: day}},

	// These are forms of numbers.
	{"0.1/s", shaper.Limits{Rate: 0.1}},
	{"010.50/s", shaper.Limits{Rate: 10.5}},
	{"2.5 per 1.5s", shaper.Limits{Rate: 2.5 / 1.5}},
	{"0.000000001/ns", shaper.Limits{Rate: 1}},
	{"1 per 365d", shaper.Limits{Rate: 1.0 / (365 * 86400)}},
	{"1000000000/s", shaper.Limits{Rate: 1e9}},
	{"9007199254740993 per 9007199254740993ns", shaper.Limits{Rate: 1e9}}, // no float64 is 2⁵³ + 1
	{"1." + strings.Repeat("0", 1020) + "/s", shaper.Limits{Rate: 1}},     // 1,024 bytes
	{"1/s burst 0 depth 0 wait 0s slack 0d", shaper.Limits{Rate: 1}},
	{"1/s burst 1", shaper.Limits{Rate: 1, Burst: 1}},
	{"1/s depth " + strconv.Itoa(math.MaxInt), shaper.Limits{Rate: 1, Depth: math.MaxInt}},
	{"1/s wait 9223372036854775807ns", shaper.Limits{Rate: 1, MaxWait: math.MaxInt64}},
	{"1/s wait 0.25us slack 1.5h", shaper.Limits{Rate: 1, MaxWait: 250, Slack: 90 * time.Minute}},

	{"1/s\tdepth \t 3", shaper.Limits{Rate: 1, Depth: 3}},
}

func TestParseLimits(t *testing.T) {
	for _, test := range wellFormed {
		l, err := shaper.ParseLimits(test.text)
		require.NoError(t, err, test.text)
		require.Equal(t, test.want, l, test.text)
	}
}

var malformed = []struct {
	column int
	reason string
	texts  []string
}{
	// The mistake is in the rate.
	{1, "expected a rate", []string{"", "x", "/s", "+5/s", "-5/s", ".5/s", "5./s", "1.2.3/s", "1e3/s", "0x5/s",
		"1_000/s", "1,5/s", "٣/s", "NaN/s", "Inf", "inf/s", "burst 10 50/s"}},
	{3, "expected / and a unit", []string{"50"}},
	{4, "expected / and a unit", []string{"50 depth 3", "50 /s", "50 Per 2s"}},
	{4, "expected a unit", []string{"50/", "50/ s", "50/S", "50/inf", "50/s\n"}},
	{4, "; write min", []string{"50/m"}},
	{4, "expected a unit: ns us ms s sec min h hour d day; write us", []string{"50/µs"}},
	{4, "expected a unit: ns us ms s sec min h hour d day; write s or sec", []string{"50/second"}},
	{6, "; write min", []string{"1000/minute"}},
	{8, "; write h or hour", []string{"1 per 2hours"}},
	{3, "expected a unit", []string{"1/2s", "1/s/s"}},
	{6, "expected a duration", []string{"1 per"}},
	{7, "expected a duration", []string{"1 per s", "1 per -2s", "1 per inf"}},
	{8, "expected a unit", []string{"1 per 2", "1 per 2 s", "1 per 1h30min"}},
	{7, "whole nanoseconds", []string{"1 per 0.5ns"}},

	// The number of a rate is per unit, and the number of a duration is in front of its unit.
	{3, "; write 1 per 10s", []string{"1/10s", "1/10s depth 3"}},
	{5, "; write 100 per 100ms", []string{"100/100ms"}},
	{5, "; write 0.5 per 1.5h", []string{"0.5/1.5h"}},
	{3, "; write 5 per 10min", []string{"5/10m", "5/10minutes"}},
	{3, "; write 5 per 90s", []string{"5/1m30s"}},
	{7, "; write 1 per 10s", []string{"10, 1/10s"}},
	{4, "; write 50/s", []string{"50 /s", "50 / s", "50 /second", "50 / sec depth 3"}},
	{3, "; write 1 per 10s", []string{"1 / 10s", "1 /10s"}},
	{8, "; write 10/min", []string{"10 per min", "10 per minute"}},
	{8, "; write 100 in 1min", []string{"100 in m"}},
	{8, "; write 90s", []string{"1 per 1m30s"}},
	{11, "; write 1h", []string{"5/s wait 1h0m0s"}},

	// The mistake is in a window.
	{1, "expected a whole number", []string{"1.5 in 1min", "100.0 in 1min", "9223372036854775808 in 1min"}},
	{1, "expected a number of at least 2 before in: write 1 per 61s", []string{"1 in 1min", "1 in 60s burst 5 depth 3", "1 in 1min slack 980ms"}},
	{1, "expected a number of at least 2 before in: write 1 per 62s", []string{"1 in 1min slack 1s"}},
	{1, "expected a number of at least 2 before in: write 1 per 121ms", []string{"1 in 100ms"}},
	{1, "expected a number of at least 2 before in", []string{"0 in 1min", "1 in 365d", "1 in 1s slack 106751d"}},
	{7, "expected a duration", []string{"100 in"}},
	{8, "expected a duration", []string{"100 in s", "100 in -2s", "100 in burst 20"}},
	{8, "expected a duration above 0", []string{"100 in 0s"}},
	{10, "expected a unit", []string{"100 in 60", "100 in 60 s"}},
	{5, "expected / and a unit", []string{"100 In 1min", "100 within 1min"}},
	{19, "expected a burst below 100, which is how many may leave in 1min", []string{"100 in 1min burst 100", "100 in 1min burst 101 depth 3"}},
	{27, "expected a burst below 100", []string{"100 in 1min depth 3 burst 100 slack 1s"}},
	{9, `expected no window in the form "10, 1/s": write 100 in 1min burst 10`, []string{"10, 100 in 1min"}},
	{5, "expected burst, depth", []string{"inf in 1min"}},
	{14, "expected nothing after", []string{"10, 1 per 2s in 1min"}},
	{13, "expected burst, depth", []string{"100 in 1min in 1min"}},
	{1, "Limits.Rate is 4.99", []string{"1000000000 in 1ns"}},
	{1, "Limits.Rate is 3.16", []string{"2 in 366d"}},
	{19, "Limits.Burst is 366,", []string{"732 in 366d burst 366"}},

	// The mistake is in what follows the rate.
	{5, "expected burst, depth, wait, slack or inflight", []string{"5/s depht 3", "5/s Depth 3", "5/s 3", "5/s inf",
		"5/s InFlight 8", "5/s in flight 8"}},
	{4, "expected no comma", []string{"5/s, depth 3", "5/s,depth 3", "inf, depth 3"}},
	{9, "expected no comma", []string{"1 per 2s, depth 3"}},
	{12, "expected no comma", []string{"5/s depth 3, wait 2s", "5/s wait 2s, depth 3"}},
	{11, "expected no comma", []string{"5/s wait 1,5s"}},
	{13, "expected depth only once", []string{"5/s depth 3 depth 4"}},
	{21, "expected burst only once", []string{"5/s burst 1 wait 2s burst 1"}},
	{10, "expected a whole number", []string{"5/s burst"}},
	{11, "expected a whole number", []string{"5/s burst 1.5", "5/s burst +1", "5/s depth -1", "5/s depth inf",
		"5/s depth 1_0", "5/s depth 9223372036854775808"}},
	{9, "expected a duration", []string{"5/s wait"}},
	{10, "expected a duration", []string{"5/s wait s"}},
	{11, "expected a unit", []string{"5/s wait 2", "5/s wait 2 s"}},
	{13, "expected a whole number", []string{"5/s inflight"}},
	{14, "expected a whole number", []string{"5/s inflight -8", "5/s inflight 1.5", "5/s inflight 8s",
		"5/s inflight inf", "5/s inflight 9223372036854775808"}},
	{24, "expected inflight only once", []string{"5/s inflight 8 depth 3 inflight 8"}},
	{12, "expected a unit", []string{"5/s slack 2sek"}},
	{11, "whole nanoseconds", []string{"5/s slack 1.5ns", "5/s slack 9223372036854775808ns", "5/s slack 106752d"}},

	// The form of the seed document.
	{4, "expected a rate", []string{"10,"}},
	{1, "expected a rate", []string{"10,1/s"}},
	{4, "expected / and a unit", []string{"10 , 1/s"}},
	{1, "expected a whole number", []string{", 1/s", "1.5, 1/s", "-1, 1/s"}},
	{9, "expected nothing after", []string{"10, 1/s depth 3", "10, 1/s burst 3", "10, 1/s inflight 3"}},
	{5, "expected a rate", []string{"10, 10, 1/s"}},

	// The mistake is a blank, or the length.
	{1, "expected no blank", []string{" ", " 5/s", "\t5/s"}},
	{4, "expected no blank", []string{"5/s "}},
	{12, "expected no blank", []string{"5/s depth 3 \t"}},
	{3, "expected a unit", []string{"5/s\u00a0depth 3"}},
	{1025, "expected at most 1024 bytes", []string{"1." + strings.Repeat("0", 1021) + "/s",
		strings.Repeat("5", 1<<20) + "/s"}},

	// The text is well formed, but Validate refuses the limits.
	{1, "Limits.Rate is 0,", []string{"0/s", "0." + strings.Repeat("0", 400) + "1/s"}},
	{5, "Limits.Rate is 0,", []string{"10, 0.0/s"}},
	{7, "Limits.Rate", []string{"1 per 0s"}},
	{1, "Limits.Rate is 1.000000001e+09,", []string{"1000000001/s"}},
	{1, "Limits.Rate is 2e+09,", []string{"2/ns depth 3"}},
	{1, "Limits.Rate is", []string{"1 per 366d", "1 per 31536001s"}},
	{1, "Limits.Rate is +Inf,", []string{"1" + strings.Repeat("0", 400) + "/s"}},
	{11, "Limits.Burst is 366,", []string{"1/d burst 366"}},
	{19, "Limits.Burst is 366,", []string{"1/d depth 9 burst 366 wait 1s"}},
	{1, "Limits.Burst is 366,", []string{"366, 1/d"}},
}

func TestParseLimitsPointsAtTheMistake(t *testing.T) {
	for _, test := range malformed {
		for _, text := range test.texts {
			l, err := shaper.ParseLimits(text)
			require.Error(t, err, text)
			require.Zero(t, l, text)
			column, reason := splitParseError(t, text, err)
			mistake, ok := errors.AsType[*shaper.ParseError](err)
			require.True(t, ok)
			require.Equal(t, &shaper.ParseError{Text: text, Column: column, Field: mistake.Field, Reason: reason}, mistake)
			require.Equal(t, test.column, column, "%s", err)
			require.Contains(t, reason, test.reason)
		}
	}
}

func TestParseErrorNamesTheField(t *testing.T) {
	for text, field := range map[string]string{
		"": "rate", "50/x": "rate", "1 per 2": "rate", "0/s depth 3": "rate", "1,5/s": "rate", "10, 1/x": "rate",
		"x, 1/s": "burst", "366, 1/d": "burst", "5/s burst": "burst", "5/s burst 1.5": "burst", "1/d burst 366": "burst",
		"5/s depth -1": "depth", "5/s depth 3, wait 2s": "depth", "5/s wait 2": "wait", "5/s burst 3 slack 1.5ns": "slack", "5/s inflight 8s": "inflight",
		"5/s dept 3": "", "5/s dept 3, wait 2s": "", "5/s, depth 3": "", "5/s depth 3 depth 4": "", "10, 1/s depth 3": "", " 5/s": "", "5/s depth 3 ": "",
		"1." + strings.Repeat("0", 1024): "",
		"1/10s":                          "rate", "10 per min": "rate", "1.5 in 1min": "rate", "1 in 1min": "rate", "1 in 1min burst 5": "rate", "10, 5 in 1min": "rate", "2 in 366d": "rate",
		"100 in 1min burst 100": "burst", "732 in 366d burst 366": "burst", "100 in 1min slack x": "slack", "inf in 1min": "",
	} {
		_, err := shaper.ParseLimits(text)
		mistake, ok := errors.AsType[*shaper.ParseError](err)
		require.True(t, ok, text)
		require.Equal(t, field, mistake.Field, "%s", err)
	}
}

// The largest float64 is rate.Inf. So large a number in a text must not mean "no limit".
func TestNoNumberIsUnlimited(t *testing.T) {
	largest := strconv.FormatFloat(math.MaxFloat64, 'f', -1, 64)
	for _, text := range []string{largest + "/s", largest + " per 1s", largest + "/s depth 3"} {
		_, err := shaper.ParseLimits(text)
		require.ErrorContains(t, err, "column 1: Limits.Rate is +Inf, must be at most")
	}
}

func TestParseErrorQuotesWholeCharacters(t *testing.T) {
	for _, test := range []struct{ text, quote string }{
		{strings.Repeat("x", 60), `"` + strings.Repeat("x", 60) + `",`},
		{strings.Repeat("x", 61), `"` + strings.Repeat("x", 60) + `"…,`},
		{strings.Repeat("x", 59) + "é", `"` + strings.Repeat("x", 59) + `"…,`},
		{strings.Repeat("x", 58) + "éx", `"` + strings.Repeat("x", 58) + `é"…,`},
		{strings.Repeat("x", 57) + "😀", `"` + strings.Repeat("x", 57) + `"…,`},
		{strings.Repeat("x", 58) + "\n\"x", `"` + strings.Repeat("x", 58) + `\n\""…,`},
		{strings.Repeat("\x80", 100), `"` + strings.Repeat(`\x80`, 56) + `"…,`}, // not UTF-8, so there is no character to keep whole
	} {
		_, err := shaper.ParseLimits(test.text)
		require.ErrorContains(t, err, "shaper: limits "+test.quote+" column 1: expected a rate")
	}
}

// splitParseError requires that err quotes the text, and returns the rest of its message.
func splitParseError(t *testing.T, text string, err error) (column int, reason string) {
	t.Helper()
	rest, ok := strings.CutPrefix(err.Error(), "shaper: limits ")
	require.True(t, ok, "%s", err)
	quoted, quoteErr := strconv.QuotedPrefix(rest)
	require.NoError(t, quoteErr, "%s", err)
	quote, quoteErr := strconv.Unquote(quoted)
	require.NoError(t, quoteErr, "%s", err)
	rest = rest[len(quoted):]
	if len(text) <= 60 {
		require.Equal(t, text, quote)
	} else {
		require.LessOrEqual(t, len(quote), 60)
		require.True(t, strings.HasPrefix(text, quote), "%s", err)
		require.True(t, utf8.ValidString(quote) || !utf8.ValidString(text), "%s", err)
		rest, ok = strings.CutPrefix(rest, "…")
		require.True(t, ok, "%s", err)
	}
	rest, ok = strings.CutPrefix(rest, ", column ")
	require.True(t, ok, "%s", err)
	number, reason, ok := strings.Cut(rest, ": ")
	require.True(t, ok, "%s", err)
	column, numberErr := strconv.Atoi(number)
	require.NoError(t, numberErr)
	require.GreaterOrEqual(t, column, 1)
	require.LessOrEqual(t, column, len(text)+1)
	require.NotEmpty(t, reason)
	return column, reason
}

// grammar is the text form as one regular expression, slow and obvious. It does not find
// words that are given twice and values that do not fit.
var grammar = func() *regexp.Regexp {
	const (
		number   = `[0-9]+(\.[0-9]+)?`
		unit     = `(ns|us|ms|s|sec|min|h|hour|d|day)`
		blank    = `[ \t]+`
		duration = number + unit
		rate     = `(inf|` + number + `/` + unit + `|` + number + blank + `per` + blank + duration + `)`
		window   = `[0-9]+` + blank + `in` + blank + duration
		rest     = `(` + blank + `((burst|depth|inflight)` + blank + `[0-9]+|(wait|slack)` + blank + duration + `))*`
	)
	return regexp.MustCompile(`^([0-9]+,` + blank + rate + `|(` + rate + `|` + window + `)` + rest + `)$`)
}()

// unfit matches the error of a text in which grammar finds no mistake.
var unfit = regexp.MustCompile(`^Limits\.(Rate|Burst) is |^expected (` +
	`(burst|depth|wait|slack|inflight) only once|a duration above 0|a whole number up to|whole nanoseconds|a number of at least 2|a burst below|at most 1024 bytes)`)

func FuzzParseLimits(f *testing.F) {
	for _, test := range wellFormed {
		f.Add(test.text)
	}
	for _, test := range malformed {
		for _, text := range test.texts {
			if len(text) < 2000 { // longer texts are slow to mutate
				f.Add(text)
			}
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		l, err := shaper.ParseLimits(text)
		if err != nil {
			require.Zero(t, l)
			_, reason := splitParseError(t, text, err)
			if grammar.MatchString(text) {
				require.Regexp(t, unfit, reason, "%q", text)
			}
			return
		}
		require.True(t, grammar.MatchString(text), "%q is taken", text)
		require.NoError(t, l.Validate())
		back, err := shaper.ParseLimits(l.String())
		require.NoError(t, err)
		require.Equal(t, l, back, "%q", text)
	})
}

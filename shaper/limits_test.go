package shaper_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"math"
	"math/big"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/shaper"
)

const day = 24 * time.Hour

func TestLimitsValidate(t *testing.T) {
	const slowest = 1.0 / (365 * 86400)
	for _, l := range []shaper.Limits{
		{Rate: 1},
		{Rate: 1e9},
		{Rate: slowest},
		{Rate: slowest, Burst: 1},
		{Rate: rate.Inf},
		{Rate: rate.Inf, Burst: math.MaxInt, Depth: math.MaxInt, MaxWait: math.MaxInt64, Slack: math.MaxInt64},
		{Rate: 1, InFlight: 1},
		{Rate: rate.Inf, InFlight: math.MaxInt},
		{Rate: 1, Burst: 365 * 86400},
		{Rate: rate.Every(3 * time.Second), Burst: 365 * 86400 / 3},
		{Rate: 1e9, Burst: math.MaxInt32},
	} {
		require.NoError(t, l.Validate(), "%v", l)
	}
	for _, test := range []struct {
		l    shaper.Limits
		want string
	}{
		{shaper.Limits{}, "Limits.Rate is 0,"},
		{shaper.Limits{Rate: -1}, "Limits.Rate is -1,"},
		{shaper.Limits{Rate: rate.Limit(math.NaN())}, "Limits.Rate is NaN,"},
		{shaper.Limits{Rate: rate.Limit(math.Inf(1))}, "Limits.Rate is +Inf,"},
		{shaper.Limits{Rate: rate.Limit(math.Inf(-1))}, "Limits.Rate is -Inf,"},
		{shaper.Limits{Rate: -rate.Inf}, "Limits.Rate is -1.79"},
		{shaper.Limits{Rate: 1e9 + 1}, "Limits.Rate is 1.000000001e+09,"},
		{shaper.Limits{Rate: rate.Limit(math.Nextafter(float64(rate.Inf), 0))}, "Limits.Rate is 1.79"},
		{shaper.Limits{Rate: rate.Limit(math.Nextafter(slowest, 0))}, "Limits.Rate is 3.1709791983764"},
		{shaper.Limits{Rate: math.SmallestNonzeroFloat64}, "Limits.Rate is 5e-324,"},
		{shaper.Limits{Rate: 1, Burst: -1}, "Limits.Burst is -1,"},
		{shaper.Limits{Rate: 1, Depth: -2}, "Limits.Depth is -2,"},
		{shaper.Limits{Rate: 1, MaxWait: -3}, "Limits.MaxWait is -3ns,"},
		{shaper.Limits{Rate: 1, Slack: -4 * time.Second}, "Limits.Slack is -4s,"},
		{shaper.Limits{Rate: 1, InFlight: -5}, "Limits.InFlight is -5,"},
		{shaper.Limits{Rate: rate.Inf, InFlight: -1}, "Limits.InFlight is -1,"},
		{shaper.Limits{Rate: rate.Inf, Burst: -1}, "Limits.Burst is -1,"},
		{shaper.Limits{Rate: rate.Inf, Slack: math.MinInt64}, "Limits.Slack is -2562047h47m16.854775808s,"},
		{shaper.Limits{Rate: 1, Burst: 365*86400 + 1}, "Limits.Burst is 31536001,"},
		{shaper.Limits{Rate: slowest, Burst: 2}, "Limits.Burst is 2,"},
		{shaper.Limits{Rate: rate.Every(3 * time.Second), Burst: 365*86400/3 + 1}, "Limits.Burst is 10512001,"},
		{shaper.Limits{Rate: 1, Burst: math.MaxInt}, "Limits.Burst is " + strconv.Itoa(math.MaxInt) + ","},
	} {
		err := test.l.Validate()
		require.ErrorContains(t, err, "shaper: "+test.want, "%v", test.l)
	}
}

func TestLimitsString(t *testing.T) {
	for _, test := range []struct {
		l    shaper.Limits
		want string
	}{
		{shaper.Limits{Rate: 50}, "50/s depth 0"},
		{shaper.Limits{Rate: 50, Burst: 1, Depth: 2, MaxWait: 90 * time.Second, Slack: 1500 * time.Millisecond},
			"50/s burst 1 depth 2 wait 90s slack 1500ms"},
		{shaper.Limits{Rate: 50, Depth: 100, InFlight: 8}, "50/s depth 100 inflight 8"},
		{shaper.Limits{Rate: rate.Inf, Burst: 1, Depth: 2, MaxWait: 1, Slack: 1, InFlight: 1},
			"inf burst 1 depth 2 wait 1ns slack 1ns inflight 1"},
		{shaper.Limits{Rate: 1000}, "1000/s depth 0"},
		{shaper.Limits{Rate: 1e9}, "1000000000/s depth 0"},
		{shaper.Limits{Rate: rate.Inf, Burst: math.MaxInt32}, "inf burst 2147483647 depth 0"},
		{shaper.Limits{Rate: 20.0 / 60}, "20/min depth 0"},
		{shaper.Limits{Rate: 1.0 / 60}, "1/min depth 0"},
		{shaper.Limits{Rate: 0.5}, "30/min depth 0"},
		{shaper.Limits{Rate: 2.5}, "2.5/s depth 0"},
		{shaper.Limits{Rate: 99.9}, "99.9/s depth 0"},
		{shaper.Limits{Rate: 10.0 / 3600}, "10/h depth 0"},
		{shaper.Limits{Rate: 7.0 / 86400}, "7/d depth 0"},
		{shaper.Limits{Rate: rate.Every(7 * time.Second)}, "1 per 7s depth 0"},
		{shaper.Limits{Rate: rate.Every(7 * time.Hour)}, "1 per 7h depth 0"},
		{shaper.Limits{Rate: 3.0 / 7}, "3 per 7s depth 0"},
		{shaper.Limits{Rate: 1 / 0.7}, "1 per 700ms depth 0"},
		{shaper.Limits{Rate: 1.0 / (365 * 86400)}, "1 per 365d depth 0"},
		{shaper.Limits{Rate: math.Pi}, "3.141592653589793/s depth 0"},
		{shaper.Limits{Rate: 1, MaxWait: 2 * day, Slack: 36 * time.Hour}, "1/s depth 0 wait 2d slack 36h"},
		{shaper.Limits{Rate: 1, MaxWait: 2 * time.Minute, Slack: 7 * time.Microsecond}, "1/s depth 0 wait 2min slack 7us"},
		{shaper.Limits{Rate: 1, MaxWait: math.MaxInt64}, "1/s depth 0 wait 9223372036854775807ns"},
	} {
		require.Equal(t, test.want, test.l.String())
		back := must(shaper.ParseLimits(test.want))
		require.Equal(t, test.l, back)
	}
}

func TestInvalidLimitsCanBePrinted(t *testing.T) {
	for _, test := range []struct {
		l    shaper.Limits
		want string
	}{
		{shaper.Limits{}, "0/s depth 0"},
		{shaper.Limits{Rate: rate.Limit(math.NaN())}, "NaN/s depth 0"},
		{shaper.Limits{Rate: rate.Limit(math.Inf(1))}, "+Inf/s depth 0"},
		{shaper.Limits{Rate: rate.Limit(math.Inf(-1))}, "-Inf/s depth 0"},
		{shaper.Limits{Rate: -rate.Inf}, "-1.7976931348623157e+308/s depth 0"},
		{shaper.Limits{Rate: math.SmallestNonzeroFloat64}, "5e-324/s depth 0"},
		{shaper.Limits{Rate: 1, Burst: -1, Depth: -2, MaxWait: -3 * time.Second, Slack: math.MinInt64},
			"1/s burst -1 depth -2 wait -3s slack -9223372036854775808ns"},
		{shaper.Limits{Rate: 1, InFlight: -1}, "1/s depth 0 inflight -1"},
	} {
		require.Equal(t, test.want, test.l.String())
		text, err := test.l.MarshalText()
		require.Nil(t, text)
		require.Equal(t, test.l.Validate(), err)
		require.Error(t, err)
	}
}

func TestLimitsStringIsReadBackExactly(t *testing.T) {
	t.Parallel()
	count := rounds(1_000, 10_000, 50_000)
	random := rand.New(rand.NewPCG(3, 50))
	whole := func(most int64) int64 { // each order of magnitude is equally likely
		return int64(math.Exp(random.Float64() * math.Log(float64(most))))
	}
	rates := []func() float64{
		func() float64 { return float64(whole(1e9)) },
		func() float64 { return float64(whole(1e9)) / 60 },
		func() float64 { return float64(whole(1e6)) / float64(whole(1e6)) },
		func() float64 { return float64(whole(1e6)) / 100 },
		func() float64 { return float64(rate.Every(time.Duration(whole(int64(365 * day))))) },
		func() float64 { return 1e9 * math.Pow(2, -54*random.Float64()) },
		func() float64 { return float64(rate.Inf) },
	}
	for range count {
		l := shaper.Limits{
			Rate:    rate.Limit(rates[random.IntN(len(rates))]()),
			Burst:   int(whole(1<<30)) - 1,
			Depth:   int(whole(math.MaxInt32)) - 1,
			MaxWait: time.Duration(whole(1<<62)) - 1,
			Slack:   time.Duration(whole(1000)) * []time.Duration{0, 1, time.Microsecond, time.Second, day}[random.IntN(5)],

			InFlight: int(whole(math.MaxInt32)) - 1,
		}
		if l.Validate() != nil {
			l.Burst = 0
		}
		require.NoError(t, l.Validate())
		back := must(shaper.ParseLimits(l.String()))
		require.Equal(t, l, back, "%v", l)
	}
}

func TestLimitsAsText(t *testing.T) {
	type file struct{ Limits shaper.Limits }
	l := shaper.Limits{Rate: 50, Depth: 100, MaxWait: 2 * time.Second}
	const text = "50/s depth 100 wait 2s"

	encoded, err := json.Marshal(file{l})
	require.NoError(t, err)
	require.Equal(t, `{"Limits":"`+text+`"}`, string(encoded))
	var decoded file
	require.NoError(t, json.Unmarshal(encoded, &decoded))
	require.Equal(t, l, decoded.Limits)

	require.ErrorContains(t, json.Unmarshal([]byte(`{"Limits":"7/s depth x"}`), &decoded), "column 11: ")
	require.Equal(t, l, decoded.Limits, "an error changes nothing")
	_, err = json.Marshal(file{shaper.Limits{Depth: 1}})
	require.ErrorContains(t, err, "Limits.Rate is 0")

	flags := flag.NewFlagSet("test", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	var given shaper.Limits
	flags.TextVar(&given, "limits", l, "what to let through")
	require.Equal(t, l, given)
	require.Equal(t, text, flags.Lookup("limits").DefValue)
	require.NoError(t, flags.Parse([]string{"-limits", "20/min depth 3"}))
	require.Equal(t, shaper.Limits{Rate: 20.0 / 60, Depth: 3}, given)
	require.ErrorContains(t, flags.Parse([]string{"-limits", "20"}), `shaper: limits "20", column 3: `)
	require.Equal(t, shaper.Limits{Rate: 20.0 / 60, Depth: 3}, given, "an error changes nothing")
}

func TestWindow(t *testing.T) {
	for _, test := range []struct {
		n     int
		w     time.Duration
		burst int
		want  shaper.Limits
		text  string
	}{
		{100, time.Minute, 20, shaper.Limits{Rate: 80 / 60.02, Burst: 20}, "1 per 750250us burst 20 depth 0 slack 20ms"},
		{20, time.Minute, 0, shaper.Limits{Rate: 19 / 60.02}, "19 per 60020ms depth 0 slack 20ms"},
		{20, time.Minute, 1, shaper.Limits{Rate: 19 / 60.02, Burst: 1}, "19 per 60020ms burst 1 depth 0 slack 20ms"},
		{2, 1, 0, shaper.Limits{Rate: 1e9 / 20_000_001.}, "49.99999750000013/s depth 0 slack 20ms"},
		{201, day, 200, shaper.Limits{Rate: 1 / 86400.02, Burst: 200}, "1 per 86400020ms burst 200 depth 0 slack 20ms"},
		{math.MaxInt32, math.MaxInt64, 1, shaper.Limits{Rate: (math.MaxInt32 - 1) / 9223372036.874775807, Burst: 1},
			"0.23283064343652432/s burst 1 depth 0 slack 20ms"},
	} {
		l, err := shaper.Window(test.n, test.w, test.burst)
		require.NoError(t, err)
		test.want.Slack = shaper.DefaultSlack
		require.Equal(t, test.want, l)
		require.Equal(t, test.text, l.String())
		require.Equal(t, l, limitsOf(t, test.text))
	}
}

func TestWindowNamesTheWrongArgument(t *testing.T) {
	for _, test := range []struct {
		n     int
		w     time.Duration
		burst int
		want  string
	}{
		{1, time.Minute, 0, "n is 1, must be at least 2"},
		{math.MinInt, time.Minute, -1, "n is -9223372036854775808, must be at least 2"},
		{2, 0, 0, "w is 0s, must be above 0"},
		{2, -time.Second, 0, "w is -1s, must be above 0"},
		{2, time.Minute, -1, "burst is -1, must not be negative"},
		{2, time.Minute, 2, "burst is 2, must be below n, which is 2"},
		{100, time.Minute, 101, "burst is 101, must be below n, which is 100"},
		{1e9, time.Nanosecond, 0, "n is 1000000000, too many for w: Limits.Rate is 4.9999997"},
		{math.MaxInt, 36500 * day, 0, "n is 9223372036854775807, too many for w: Limits.Rate is 2.9"},
		{2, 366 * day, 0, "w is 8784h0m0s, too long for n: Limits.Rate is 3.16"},
		{732, 366 * day, 366, "burst is 366, too much for n and w: Limits.Burst is 366, which at Limits.Rate 1.1"},
	} {
		l, err := shaper.Window(test.n, test.w, test.burst)
		require.ErrorContains(t, err, "shaper: Window: "+test.want)
		require.Zero(t, l)
	}
}

// What guarantee 1 lets leave in a window of w, by the exact rate of the schedule, is n and no more, also where
// n is so large that a rate can't be told from the next one.
func TestWindowAllowsExactlyN(t *testing.T) {
	r := rand.New(rand.NewPCG(38, 4))
	valid := 0
	for range 5000 {
		n, w := int(1<<r.IntN(56))+r.IntN(1000), time.Duration(math.Exp(r.Float64()*math.Log(1<<62)))
		burst := r.IntN(1 << r.IntN(40))
		l, err := shaper.Window(n, w, burst)
		if err != nil {
			continue
		}
		valid++
		span := new(big.Rat).SetInt64(int64(w))
		span.Add(span, new(big.Rat).SetInt64(int64(l.Slack)))
		span.Quo(span, exact.IntervalOf(l.Rate).Rat())
		most := new(big.Int).Quo(span.Num(), span.Denom()).Int64() + int64(max(burst, 1))
		require.LessOrEqual(t, most, int64(n), "%d in %v burst %d", n, w, burst)
		require.GreaterOrEqual(t, most+int64(n)>>47+1, int64(n), "%d in %v burst %d", n, w, burst)
	}
	require.Greater(t, valid, 1000)
}

// A departure is a cost, and when it left.
type departed struct{ at, cost int64 }

// mostInAnyWindow returns the largest cost that left in a closed window that begins at a departure.
func mostInAnyWindow(all []departed, w time.Duration) (most int64) {
	in, end := int64(0), 0
	for _, first := range all {
		for ; end < len(all) && all[end].at <= first.at+int64(w); end++ {
			in += all[end].cost
		}
		most = max(most, in)
		in -= first.cost
	}
	return most
}

// The line is never empty, so as much leaves as the promise lets leave. In virtual time nothing is late:
// TestNoWindowHoldsMoreThanItPromisesHoweverLate is the same where Slack counts.
func TestNoWindowHoldsMoreThanItPromises(t *testing.T) {
	t.Parallel()
	const departures, callers = 100_000, 10
	for text, promise := range map[string]struct {
		n int64
		w time.Duration
	}{
		"100 in 1min burst 20":           {100, time.Minute},
		"20 in 1min":                     {20, time.Minute},
		"1000 in 1s slack 3ms burst 100": {1000, time.Second},
	} {
		bubble(t, text, func(t *testing.T) {
			l := limitsOf(t, text)
			l.Depth = callers
			began := time.Now()
			var mu sync.Mutex
			var all []departed
			s, err := shaper.New(l, shaper.WithTrace(&shaper.Trace{Departed: func(_ context.Context, e shaper.Event) {
				mu.Lock()
				defer mu.Unlock()
				all = append(all, departed{int64(e.At.Sub(began)), int64(e.Cost)})
			}}))
			require.NoError(t, err)
			var wg sync.WaitGroup
			for i := range callers {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(38, uint64(i)))
					for range departures / callers {
						_ = s.WaitN(t.Context(), 1+r.IntN(max(l.Burst, 1))) // What is refused is missing below.
					}
				})
			}
			wg.Wait()
			require.NoError(t, s.Close())
			require.Len(t, all, departures)
			slices.SortFunc(all, func(a, b departed) int { return cmp.Compare(a.at, b.at) })
			most := mostInAnyWindow(all, promise.w)
			require.LessOrEqual(t, most, promise.n)
			require.GreaterOrEqual(t, most, promise.n*99/100, "much less leaves than may")
		})
	}
}

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
		back := must(shaper.ParseLimits(l.String()))
		require.Equal(t, l, back, "%q", text)
	})
}

package shaper_test

import (
	"encoding/json"
	"flag"
	"io"
	"math"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

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
		back, err := shaper.ParseLimits(test.want)
		require.NoError(t, err)
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
		back, err := shaper.ParseLimits(l.String())
		require.NoError(t, err)
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

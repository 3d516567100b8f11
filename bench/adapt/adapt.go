// Package adapt measures how well limiters find a rate that nobody has told them, before upstreams that refuse, queue,
// fail or are gone for a time. Everything happens in virtual time.
package adapt

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/run"
)

// Experiment is "adapt".
var Experiment = run.Experiment{
	Name: "adapt",
	What: "how well limiters find the rate that an upstream bears",
	Note: "In virtual time: 20 to 30 ms each way at random, an upstream of C = 100/s (a token bucket with burst 10 unless another is named), and 120 workers " +
		"that always want to call, shared out among 1 client or 4, which share nothing. Figures are of the seconds 60 to 360. use-% is good answers of what the upstream " +
		"would have borne; refused-% is 429 of all calls. From a start at a tenth, after a fall of C to 30 %, and after it is back, times are until the next second of calls is " +
		"at least 90 %, or at most 110 % of what is borne. " +
		"adapt: this library, Min C/100, Max 10 C. fixedN: a Shaper with N % of C, for which C must be known, shared out among the clients. aws: the adaptive mode of the AWS SDK. aimd: by hand " +
		"on x/time, a tenth less for each refusal or failure and a tenth more a second. failsafe-limiter bounds calls at once by latency, with a line; " +
		"failsafe-throttler refuses calls itself by chance, and a worker that it refuses comes back after 100 ms. " +
		"OnOff: 5 s on, 5 s off. Rate5, Falls5 and Falls1000: C = 5/s and 1,000/s. Burst1: the token bucket has a burst of 1. Falls: C is 30 % in each second minute. " +
		"Queue: eight servers of 40 to 120 ms with a queue that refuses nothing, 130 ms unloaded, Slow 200 ms. QueueExp: the same with exponential times, and Slow 200 and 250 ms. " +
		"Minute: at most 6,000 in any minute. Dead: one answer in a hundred is 500, and in the fourth minute none comes (time-out 1 s); least-% is of the least 10 s before that, dead/s of its second half, refused-% of the 30 s after it. " +
		"TimeOuts: one call in a hundred times out. Noise: one in a hundred gets 429 whatever the rate is.",
	Goals: goals(),
	Groups: func(o run.Options) []run.Group {
		return []run.Group{{Cases: cases(o)}}
	},
}

// goals are the figures that must be reached, with 1 client and with 4.
func goals() (all []report.Goal) {
	for _, g := range []struct {
		what, upstream, unit string
		least, most          [2]float64 // 0: none
	}{
		{"uses what a token bucket lets through, %", "Rate", "use-%", [2]float64{97, 97}, [2]float64{}},
		{"refused by a token bucket, %", "Rate", "refused-%", [2]float64{}, [2]float64{0.4, 1.5}},
		{"from a tenth of the rate to 90 %, s", "Rate", "rise-s", [2]float64{}, [2]float64{6, 6}},
		{"refused after each pause of 5 s, %", "OnOff", "refused-%", [2]float64{}, [2]float64{0.5, 2}},
		{"uses 5/s, %", "Rate5", "use-%", [2]float64{95, 95}, [2]float64{}},
		{"refused at 5/s, %", "Rate5", "refused-%", [2]float64{}, [2]float64{2, 4}},
		{"uses a capacity that falls and rises, %", "Falls", "use-%", [2]float64{92, 90}, [2]float64{}},
		{"refused by it, %", "Falls", "refused-%", [2]float64{}, [2]float64{1, 2.5}},
		{"down to 30 % after it fell, s", "Falls", "down-s", [2]float64{}, [2]float64{0.4, 1}},
		{"back to 90 % after it rose, s", "Falls", "back-s", [2]float64{}, [2]float64{12, 20}},
		{"uses 1,000/s that falls and rises, %", "Falls1000", "use-%", [2]float64{90, 0}, [2]float64{}},
		{"back to 90 % of 1,000/s, s", "Falls1000", "back-s", [2]float64{}, [2]float64{12, 0}},
		{"uses servers with a queue, %", "Queue", "use-%", [2]float64{95, 95}, [2]float64{}},
		{"their mean latency, times the unloaded", "Queue", "latency-x", [2]float64{}, [2]float64{1.4, 1.4}},
		{"the least 10 s with 1 % of 500s, %", "Dead", "least-%", [2]float64{90, 90}, [2]float64{}},
		{"calls a second while nobody answers", "Dead", "dead/s", [2]float64{}, [2]float64{5, 5}},
		{"back to 90 % after that, s", "Dead", "back-s", [2]float64{}, [2]float64{12, 12}},
		{"refused in the 30 s after that, %", "Dead", "refused-%", [2]float64{}, [2]float64{2.5, 2.5}},
		{"uses the rate with 1 % of time-outs, %", "TimeOuts", "use-%", [2]float64{95, 95}, [2]float64{}},
		{"uses the rate with 1 % of 429s, %", "Noise", "use-%", [2]float64{35, 90}, [2]float64{}},
	} {
		for i, clients := range []int{1, 4} {
			if g.least[i] == 0 && g.most[i] == 0 {
				continue
			}
			all = append(all, report.Goal{
				What:  fmt.Sprintf("adapt: %s, %d client(s)", g.what, clients),
				Ours:  nameOf(g.upstream, clients, ours) + " " + g.unit,
				Least: g.least[i], Most: g.most[i],
			})
		}
	}
	return all
}

// A scenario is an upstream, and how it is called.
type scenario struct {
	name    string
	rate    float64 // C, per second
	slow    time.Duration
	onOff   bool
	only    int // this number of clients alone; 0: both
	open    func(s scenario, seed uint64) upstream
	falls   bool // C is 30 % in each second minute
	figures func(s scenario, calls []call) any
}

const (
	workers = 120
	warm    = time.Minute
	until   = 6 * time.Minute
	timeOut = time.Second
)

func scenarios() []scenario {
	bucket := func(burst float64) func(scenario, uint64) upstream {
		return func(s scenario, _ uint64) upstream { return &tokenBucket{rate: s.rateAt, burst: burst, tokens: burst} }
	}
	return []scenario{
		{name: "Rate", rate: 100, open: bucket(10), figures: risen},
		{name: "OnOff", rate: 100, open: bucket(10), onOff: true, figures: steady},
		{name: "Rate5", rate: 5, open: bucket(10), figures: steady},
		{name: "Burst1", rate: 100, open: bucket(1), figures: steady},
		{name: "Falls", rate: 100, open: bucket(10), falls: true, figures: fallen},
		{name: "Falls1000", rate: 1000, open: bucket(10), falls: true, only: 1, figures: fallen},
		{name: "Falls5", rate: 5, open: bucket(10), falls: true, figures: fallen},
		{name: "Queue", rate: 100, slow: 200 * time.Millisecond, open: openServers(false), figures: queued},
		{name: "QueueExp", rate: 100, slow: 200 * time.Millisecond, open: openServers(true), figures: queued},
		{name: "QueueExp250", rate: 100, slow: 250 * time.Millisecond, open: openServers(true), figures: queued},
		{name: "Minute", rate: 100, open: func(s scenario, _ uint64) upstream { return &rollingMinute{most: int(60 * s.rate)} }, figures: steady},
		{name: "Dead", rate: 100, open: openDying, figures: died},
		{name: "TimeOuts", rate: 100, open: openNoisy(silent), figures: steady},
		{name: "Noise", rate: 100, open: openNoisy(refused), figures: steady},
	}
}

// rateAt returns C at a time after the start, and for how long it stays so.
func (s scenario) rateAt(at time.Duration) (rate float64, left time.Duration) {
	minute := at / time.Minute
	left = (minute+1)*time.Minute - at
	if s.falls && minute%2 == 1 {
		return 0.3 * s.rate, left
	}
	return s.rate, left
}

// borne returns how many calls the upstream would have borne between two instants.
func (s scenario) borne(from, to time.Duration) (calls float64) {
	for from < to {
		rate, left := s.rateAt(from)
		span := min(left, to-from)
		calls += rate * span.Seconds()
		from += span
	}
	return calls
}

func cases(o run.Options) (all []run.Case) {
	for _, s := range scenarios() {
		for _, clients := range []int{1, 4} {
			if s.only != 0 && clients != s.only || o.Quick && clients != 1 {
				continue
			}
			for _, l := range limiters() {
				if o.Quick && l.name != ours && l.name != "aws" {
					continue
				}
				name := nameOf(s.name, clients, l.name)
				all = append(all, run.Case{Name: name, Rounds: o.Times(3, 1), Measure: func(t *testing.T) []report.Line {
					return []report.Line{report.LineOf(name, s.figures(s, s.play(t, clients, l.open)))}
				}})
			}
		}
	}
	return all
}

func nameOf(upstream string, clients int, limiter string) string {
	return fmt.Sprintf("Adapt%s/clients=%d/limiter=%s", upstream, clients, limiter)
}

// play lets the workers call in a bubble, and returns their calls in the order in which they left.
func (s scenario) play(t *testing.T, clients int, open opener) (calls []call) {
	synctest.Test(t, func(t *testing.T) {
		calls = s.callAll(clients, open)
	})
	return calls
}

// steadyFigures are of the time after the first minute.
type steadyFigures struct {
	Use     float64 `unit:"use-%"`
	Refused float64 `unit:"refused-%"`
}

func steady(s scenario, calls []call) any {
	f := steadyFigures{Use: measure.Unknown}
	calls = between(calls, warm, until)
	f.Refused = 100 * share(calls, func(c call) bool { return c.answer == refused })
	if !s.onOff {
		f.Use = 100 * share(calls, good) * float64(len(calls)) / s.borne(warm, until)
	}
	return f
}

func good(c call) bool { return c.answer == fine }

func risen(s scenario, calls []call) any {
	return struct {
		steadyFigures
		Rise float64 `unit:"rise-s"`
	}{steady(s, calls).(steadyFigures), s.backAfter(calls, 0, warm)}
}

func fallen(s scenario, calls []call) any {
	f := struct {
		steadyFigures
		Down float64 `unit:"down-s"`
		Back float64 `unit:"back-s"`
	}{steadyFigures: steady(s, calls).(steadyFigures)}
	var down, back []float64
	for at := time.Minute; at < until; at += 2 * time.Minute {
		down = append(down, s.downAfter(calls, at, at+time.Minute))
		if back = append(back, s.backAfter(calls, at+time.Minute, at+2*time.Minute)); at+2*time.Minute >= until {
			back = back[:len(back)-1] // The run ends in that minute's place.
		}
	}
	f.Down, f.Back = mean(down), mean(back)
	return f
}

// mean returns the mean of figures, which is unknown if one of them is.
func mean(figures []float64) (mean float64) {
	for _, f := range figures {
		mean += f / float64(len(figures))
	}
	return mean
}

func queued(s scenario, calls []call) any {
	const unloaded = 130 * time.Millisecond
	f := struct {
		Use     float64       `unit:"use-%"`
		Latency time.Duration `unit:"latency-ns"`
		Times   float64       `unit:"latency-x"`
	}{Use: steady(s, calls).(steadyFigures).Use}
	var sum time.Duration
	calls = between(calls, warm, until)
	for _, c := range calls {
		sum += c.latency
	}
	f.Latency = sum / time.Duration(max(1, len(calls)))
	f.Times = f.Latency.Seconds() / unloaded.Seconds()
	return f
}

func died(s scenario, calls []call) any {
	f := struct {
		Least   float64 `unit:"least-%"`
		Dead    float64 `unit:"dead/s"`
		Back    float64 `unit:"back-s"`
		Refused float64 `unit:"refused-%"`
	}{Least: measure.Unknown}
	least := len(calls)
	const span, late = 10 * time.Second, 30 * time.Second
	for at := warm; at+span <= deadFrom; at += 100 * time.Millisecond {
		least = min(least, len(between(calls, at, at+span)))
	}
	f.Least = 100 * float64(least) / (s.rate * span.Seconds())
	f.Dead = float64(len(between(calls, deadFrom+late, deadUntil))) / (deadUntil - deadFrom - late).Seconds()
	f.Back = s.backAfter(calls, deadUntil, until)
	f.Refused = 100 * share(between(calls, deadUntil, deadUntil+30*time.Second), func(c call) bool { return c.answer == refused })
	return f
}

// backAfter returns how many seconds after an instant the next second of calls is at least 90 % of what the upstream bears.
func (s scenario) backAfter(calls []call, from, to time.Duration) float64 {
	return s.firstSecond(calls, from, to, func(calls, borne float64) bool { return calls >= 0.9*borne })
}

// downAfter is backAfter for a fall: the calls are at most 110 %.
func (s scenario) downAfter(calls []call, from, to time.Duration) float64 {
	return s.firstSecond(calls, from, to, func(calls, borne float64) bool { return calls <= 1.1*borne })
}

// firstSecond returns how many seconds after from the calls of the next second are enough, before to. If a second is
// too short for a count, it is longer.
func (s scenario) firstSecond(calls []call, from, to time.Duration, enough func(calls, borne float64) bool) float64 {
	second := max(time.Second, time.Duration(50/s.rate*float64(time.Second)))
	for at := from; at+second <= to; at += 10 * time.Millisecond {
		if enough(float64(len(between(calls, at, at+second))), s.borne(at, at+second)) {
			return (at - from).Seconds()
		}
	}
	return measure.Unknown
}

// share returns the share of calls for which something is so; 0 of none.
func share(calls []call, is func(call) bool) float64 {
	n := 0
	for _, c := range calls {
		if is(c) {
			n++
		}
	}
	return float64(n) / float64(max(1, len(calls)))
}

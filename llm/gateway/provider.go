package gateway

import (
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/leakybucket/llm"
	"example.com/leakybucket/shaper"
)

// A dialect has the forms of a provider's API for the responses of a gateway.
type dialect struct {
	provider llm.Provider // with all its functions
	fail     func(h http.Header, f failure) (document any)
	left     func(h http.Header, kind llm.Kind, limit, remaining int, full time.Duration) // sets the rate-limit headers; nil: there are none
}

var dialects = map[string]dialect{
	"openai":            {llm.OpenAI, failOpenAI, leftOpenAI},
	"openai-compatible": {compatible(), failOpenAI, leftOpenAI},
	"anthropic":         {llm.Anthropic, failAnthropic, leftAnthropic},
	"gemini":            {llm.Gemini, failGoogle, nil},
	"bedrock":           {llm.Bedrock, failBedrock, nil},
}

// Providers returns the names of the providers that are known.
func Providers() []string { return slices.Sorted(maps.Keys(dialects)) }

// compatible returns the provider for APIs of OpenAI's form. APIs with rate-limit headers may count as Azure does: the prompt
// and the most tokens of the answer, when a call begins. Calls of the others settle with their usage.
func compatible() llm.Provider {
	p := llm.OpenAI
	p.Counted = nil
	return p
}

// The words of [Config].Estimate; any other is a number.
const (
	learned = "learned"
	asked   = "asked"
)

// DefaultEstimate returns the [Config].Estimate that suits a provider: openai and bedrock count what a call asks for.
func DefaultEstimate(provider string) string {
	if provider == "openai" || provider == "bedrock" {
		return asked
	}
	return learned
}

// IsEstimate reports whether a text is a [Config].Estimate.
func IsEstimate(text string) bool {
	n, _ := strconv.Atoi(text)
	return text == "" || text == asked || text == learned || n > 0
}

// levels returns the levels of a Config whose provider is known.
func (c *Config) levels(d dialect) (*llm.Levels, error) {
	l := &llm.Levels{Provider: d.provider, Quota: c.Quota, Unasked: c.Unasked}
	if c.OutputFactor > 0 {
		l.Provider.OutputFactor = func(string) int { return c.OutputFactor }
	}
	if !IsEstimate(c.Estimate) {
		return nil, fmt.Errorf("gateway: Config.Estimate is %q, must be learned, asked, or a number of tokens above 0", c.Estimate)
	}
	if l.Output, _ = strconv.Atoi(c.Estimate); c.Estimate == learned { // 0 for a word.
		l.Estimates = &c.Ledger.learned
	}
	return l, nil
}

// limitFields are the prefixes of the providers' rate-limit headers.
var limitFields = []string{"X-Ratelimit-", "X-Ratelimitbysize-", "Ratelimitbysize-", "Anthropic-Ratelimit-", "Llm_provider-X-Ratelimit-"}

// noteLeft tells the line what a response says is left.
func (g *Gateway) noteLeft(h http.Header) {
	line := g.config.Line()
	if len(line.Meters()) > 0 {
		g.levels.Left(line, h)
		return
	}
	if n, ok := g.config.Quota.Scarcest(g.dialect.provider.Left(h)); ok && n < millionths {
		// A whole minute's quota may be more than this Gateway's, if the line has another quota since.
		line.AtMost(g.scaled(n, math.Floor))
	}
}

// setLeft replaces the provider's rate-limit headers by the gateway's: a caller that heeds them must not slow down for the
// usage of others. The remaining amount is [shaper.Stats].Free, the part that may leave at once: nothing while calls wait,
// while the line is held, or while as many calls run as may. It is full when the bucket has drained and no hold lasts.
func (g *Gateway) setLeft(h http.Header) {
	for field := range h {
		if slices.ContainsFunc(limitFields, func(begin string) bool { return strings.HasPrefix(field, begin) }) {
			h.Del(field)
		}
	}
	if g.dialect.left == nil {
		return
	}
	line, q := g.config.Line(), g.config.Quota
	st := line.Stats()
	held := max(0, time.Until(st.HeldUntil))
	levels, limits := levelsOf(line, g.minute()), map[llm.Kind]int{llm.Requests: q.Requests, llm.Tokens: q.Tokens, llm.Input: q.Input, llm.Output: q.Output}
	for i, kind := range q.Kinds() {
		limit := limits[kind]
		if limit == 0 {
			continue
		}
		l := levels[min(i, len(levels)-1)] // One bucket has all limits. If a reload changes the line meanwhile, it may have fewer.
		free := 0
		if st.Free > 0 {
			free = max(0, int(min(l.capacity-l.level, 1)*float64(limit)))
		}
		g.dialect.left(h, kind, limit, free, max(held, time.Duration(l.level*float64(time.Minute))))
	}
}

// A level is a level of a line, as parts of a minute's quota.
type level struct {
	level, reserved, capacity float64
	givenBack, forfeited      uint64 // in its units
}

// levelsOf returns the levels of a line: one, or one for each kind of limit. minute is the number of units in a minute's quota of
// a line of one level. A level without a limit is always 0.
func levelsOf(line *shaper.Shaper, minute float64) (levels []level) {
	st, meters := line.Stats(), line.Meters()
	of := func(n, perSecond float64) float64 {
		if perSecond == math.MaxFloat64 { // rate.Inf of x/time
			return 0
		}
		return n / (60 * perSecond)
	}
	if len(meters) == 0 {
		return []level{{st.Level / minute, float64(st.Reserved) / minute, float64(st.Limits.Burst) / minute, st.GivenBack, st.Forfeited}}
	}
	r := float64(st.Limits.Rate)
	levels = append(levels, level{of(st.Level, r), of(float64(st.Reserved), r), of(float64(max(st.Limits.Burst, 1)), r), st.GivenBack, st.Forfeited})
	for _, m := range meters {
		r := float64(m.Rate)
		levels = append(levels, level{of(m.Level, r), of(float64(m.Reserved), r), of(float64(max(m.Burst, 1)), r), m.GivenBack, m.Forfeited})
	}
	return levels
}

func leftOpenAI(h http.Header, kind llm.Kind, limit, remaining int, full time.Duration) {
	h.Set("X-Ratelimit-Limit-"+string(kind), strconv.Itoa(limit))
	h.Set("X-Ratelimit-Remaining-"+string(kind), strconv.Itoa(remaining))
	h.Set("X-Ratelimit-Reset-"+string(kind), full.Round(time.Millisecond).String())
}

func leftAnthropic(h http.Header, kind llm.Kind, limit, remaining int, full time.Duration) {
	field := "Anthropic-Ratelimit-" + string(kind)
	h.Set(field+"-Limit", strconv.Itoa(limit))
	h.Set(field+"-Remaining", strconv.Itoa(remaining))
	h.Set(field+"-Reset", time.Now().Add(full+time.Second-1).UTC().Format(time.RFC3339))
}

// Levels returns the limits and the meters of the line of a gateway: a level for each limit, as the provider counts it. The other
// arguments are as for [llm.Quota.Limits].
func Levels(provider string, q llm.Quota, burst time.Duration, depth int) (shaper.Limits, []shaper.Meter, error) {
	d, ok := dialects[provider]
	if !ok {
		return shaper.Limits{}, nil, fmt.Errorf("gateway: the provider %q is unknown, must be one of %s", provider, strings.Join(Providers(), ", "))
	}
	return (&llm.Levels{Provider: d.provider, Quota: q}).Limits(burst, depth)
}

// DefaultBurst returns the burst that suits a provider: a minute less the longest usual call. Bedrock counts all that a call may
// take when it begins, so it takes more at once. Of a rolling minute, as gemini counts, what may leave at once is lost to the rate.
func DefaultBurst(provider string) time.Duration {
	switch provider {
	case "bedrock":
		return 50 * time.Second
	case "gemini":
		return 5 * time.Second
	}
	return 30 * time.Second
}

// Limits returns the limits of a line with one level for all limits, for a gateway whose [Config] has that Scale. The other arguments are as for
// [llm.Quota.Limits].
func Limits(q llm.Quota, scale float64, burst time.Duration, depth int) (shaper.Limits, error) {
	l, err := q.Limits(burst, depth)
	if err == nil && scale != 0 {
		if !isScale(scale) {
			return shaper.Limits{}, fmt.Errorf("gateway: the scale is %v, must be a number above 0", scale)
		}
		l.Rate = times(l.Rate, scale)
		l.Burst = times(l.Burst, scale)
	}
	return l, err
}

// isScale reports whether limits and costs can be multiplied by a number.
func isScale(n float64) bool { return n > 0 && !math.IsInf(n, 1) }

func times[N ~int | ~float64](n N, by float64) N { return N(float64(n) * by) }

// Scale returns the Scale of the [Config] for a line that was made for the quota from and now has the quota to: the
// smallest ratio between limits that both have.
func Scale(from, to llm.Quota) float64 {
	scale := math.Inf(1)
	for _, l := range [][2]int{{from.Requests, to.Requests}, {from.Tokens, to.Tokens}, {from.Input, to.Input}, {from.Output, to.Output}} {
		if l[0] > 0 && l[1] > 0 {
			scale = min(scale, float64(l[1])/float64(l[0]))
		}
	}
	if math.IsInf(scale, 1) {
		return 1
	}
	return min(max(scale, 1e-3), 1e3)
}

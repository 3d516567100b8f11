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

// levels returns the levels of a Config whose provider is known.
func (c *Config) levels(d dialect) (*llm.Levels, error) {
	l := &llm.Levels{Provider: d.provider, Quota: c.Quota, Unasked: c.Unasked}
	if c.OutputFactor > 0 {
		l.Provider.OutputFactor = func(string) int { return c.OutputFactor }
	}
	switch how := c.Estimate; how {
	case "", asked:
	case learned:
		l.Estimates = &c.Ledger.learned
	default:
		n, err := strconv.Atoi(how)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("gateway: Config.Estimate is %q, must be learned, asked, or a number of tokens above 0", how)
		}
		l.Output = n
	}
	return l, nil
}

// limitFields are the prefixes of the providers' rate-limit headers.
var limitFields = []string{"X-Ratelimit-", "X-Ratelimitbysize-", "Ratelimitbysize-", "Anthropic-Ratelimit-", "Llm_provider-X-Ratelimit-"}

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
	st := g.config.Line().Stats()
	free := min(float64(st.Free), g.minute())
	full := max(0, time.Until(st.EmptyAt), time.Until(st.HeldUntil))
	q := g.config.Quota
	for _, of := range []struct {
		kind  llm.Kind
		limit int
	}{{llm.Requests, q.Requests}, {llm.Tokens, q.Tokens}, {llm.Input, q.Input}, {llm.Output, q.Output}} {
		if of.limit > 0 {
			g.dialect.left(h, of.kind, of.limit, int(free/g.minute()*float64(of.limit)), full)
		}
	}
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

// Limits returns the limits of the line of a gateway whose [Config] has that Scale. The other arguments are as for
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

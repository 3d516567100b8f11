package llm

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"time"
)

// A Provider describes how an API counts tokens and reports them. For an API that differs from
// the ones here, copy a similar one and replace a function. A function may be nil: without
// Estimate a call costs a request's share, without Usage the estimate stands.
//
// [OpenAI] charges calls at their start and refunds nothing. For a compatible API that has
// rate-limit headers, and counts the usage, such as Groq's, replace Counts and Counted:
//
//	groq := llm.OpenAI
//	groq.Counts = llm.AsUsed
//	groq.Counted = func(u llm.Usage) llm.Usage {
//		u.CacheRead = 0 // "Cached tokens do not count towards your rate limits."
//		return u
//	}
type Provider struct {
	// Estimate returns the most that a call may use, by the body of its request. It leaves the body
	// readable, byte for byte. A request for which it returns an error is not sent, and fails with
	// [shaper.ErrNegativeCost]. Of a body without GetBody only the first 1 MiB is read before it is sent. The rest is scanned as
	// it passes, so Estimate may be called again when it has passed, and returns what the whole asks for.
	Estimate func(*http.Request) (Usage, error)

	// Counted returns the part of a usage that counts towards the provider's limits, for example
	// without the tokens that were read from a cache. It is applied to estimates and to reported
	// usage. A negative number counts as 0. nil means that everything counts.
	Counted func(Usage) Usage

	// Counts says when the provider counts a call.
	Counts Counting

	// OutputFactor returns how many tokens the provider counts for a token of a model's output, when a call has ended. nil means
	// 1 for each model.
	OutputFactor func(model string) int

	// Usage returns the usage in a JSON body or in one event of a stream; ok reports whether there is any.
	// Of a stream the last event with usage counts. Where it has 0, the number of an earlier event
	// stands, because some APIs report the input first and the output last.
	Usage func(event []byte) (u Usage, ok bool)

	// Left returns the remaining amounts in the rate-limit headers of a response, without the
	// malformed ones.
	Left func(http.Header) []Left

	// HoldFor returns for how long a response asks callers to hold back; 0: it does not, or no wait cures what it is about, such as
	// a credit that is used up. It leaves the body readable. Of a refusal the first 64 KiB are read, for at most 5 seconds.
	HoldFor func(*http.Response) time.Duration
}

// A Counting says when a provider counts the tokens of a call, and what comes back when it has ended.
type Counting int

const (
	// AsUsed counts a call as if its usage had been known when it began. Output may count as it is produced.
	AsUsed Counting = iota

	// AtStart counts what a call asks for when it begins, and nothing comes back: the estimate stands, if the response has
	// rate-limit headers. A response without them is from a compatible server, and its call settles with the whole usage.
	AtStart

	// Returned counts what a call asks for when it begins. What was too much comes back when it has ended, also what has drained
	// meanwhile.
	Returned

	// Rolling counts as AsUsed, in each rolling minute: the provider has no bucket that drains.
	Rolling
)

// A Kind names a limit.
type Kind string

// The limits that a provider may have, as in [Quota].
const (
	Requests Kind = "requests"
	Tokens   Kind = "tokens"
	Input    Kind = "input-tokens"
	Output   Kind = "output-tokens"
)

// A Left is the remaining amount of a limit, by a response.
type Left struct {
	Kind      Kind
	Limit     int // per a span that need not be a minute; 0: unknown
	Remaining int
}

// Scarcest returns the smallest remaining amount, in cost units of q, for [shaper.Shaper.AtMost]; ok reports
// whether any is known. A limit that q does not have is left out, as calls cost no share of it.
func (q Quota) Scarcest(left []Left) (n int, ok bool) {
	n = math.MaxInt
	for _, l := range left {
		if limit := q.of(l.Kind); limit > 0 && l.Remaining >= 0 {
			n, ok = min(n, share(l.Remaining, limit)), true
		}
	}
	return n, ok
}

// of returns the limit of a kind, 0 if there is none.
func (q Quota) of(k Kind) int {
	switch k {
	case Requests:
		return q.Requests
	case Tokens:
		return q.Tokens
	case Input:
		return q.Input
	case Output:
		return q.Output
	}
	return 0
}

// A count is an integer of at least 0 in a JSON document, which may be written as 120, 120.0 or 1.2e2: JSON has one type of
// number. Anything else, such as a negative number, a fraction, a text, or an overflow, is unknown, and does not keep the rest
// of the document from being read.
type count struct {
	n     int
	known bool
}

// UnmarshalJSON never returns an error.
func (c *count) UnmarshalJSON(text []byte) error {
	*c = count{}
	n, err := strconv.Atoi(string(text))
	if err != nil {
		const most = 1 << 53 // A larger float need not be the integer that was written.
		f, err := strconv.ParseFloat(string(text), 64)
		if n = int(f); err != nil || !(f >= 0 && f < most) || float64(n) != f {
			return nil
		}
	}
	if n >= 0 {
		*c = count{n: n, known: true}
	}
	return nil
}

// A ceiling is the most output tokens that a request allows; 0 if it is missing or malformed. A
// number that overflows is the largest int: Quota.Cost bounds it.
type ceiling int

// UnmarshalJSON never returns an error.
func (c *ceiling) UnmarshalJSON(text []byte) error {
	if n, _ := strconv.ParseFloat(string(text), 64); n > 0 { // It is 0 for a text that is no number, and infinite for an overflow.
		*c = math.MaxInt
		if n < math.MaxInt32 {
			*c = ceiling(math.Ceil(n))
		}
	}
	return nil
}

// decode reads a JSON document, and reports whether it is one. A field of an unexpected type does
// not keep the others from being read.
func decode(document []byte, into any) bool {
	err := json.Unmarshal(document, into)
	if _, mistyped := err.(*json.UnmarshalTypeError); mistyped {
		return true
	}
	return err == nil
}

// without returns total − part, but at least 0.
func without(total, part int) int { return max(0, total-max(0, part)) }

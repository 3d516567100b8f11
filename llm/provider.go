package llm

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"time"
)

// A Provider is how an API counts and reports. For an API that differs from one that is here, copy
// that one and replace a function. A function that is nil knows nothing: without Estimate a call
// costs a request's share, without Usage the estimate stands.
//
// [OpenAI] counts when a call begins and gives nothing back. For an API of the same form that says
// what is left, and counts what calls have used, such as Groq's, replace Counted:
//
//	groq := llm.OpenAI
//	groq.Counted = func(u llm.Usage) llm.Usage {
//		u.CacheRead = 0 // "Cached tokens do not count towards your rate limits."
//		return u
//	}
type Provider struct {
	// Estimate returns what a call may take, from the body of its request. It leaves the body
	// readable, byte for byte. A request for which it returns an error is not sent, and fails with
	// [shaper.ErrNegativeCost].
	Estimate func(*http.Request) (Usage, error)

	// Counted returns what of a usage the provider counts towards its limits, for example
	// without the tokens that were read from a cache. It is applied to estimates and to what
	// responses report. A negative number in what it returns counts as 0, and means that the provider
	// counts a call when it begins, whatever the call uses later: the estimate stands, if the response says
	// what is left of the provider's limits. A response that does not comes from a server that only has
	// the form of the API, and the call settles with all that it has used. nil means that everything counts.
	Counted func(Usage) Usage

	// Usage returns the usage that a JSON body or one event of a stream reports; ok reports whether it does.
	// Of the events of a stream the last for which ok is true counts; where it leaves a
	// number at 0 an earlier one stands, because some APIs report the input first and the output last.
	Usage func(event []byte) (u Usage, ok bool)

	// Left returns what is left, as the header of a response says. Malformed fields are
	// left out.
	Left func(http.Header) []Left

	// HoldFor returns for how long a response asks callers to hold back; 0: it does not
	// ask. It leaves the body readable.
	HoldFor func(*http.Response) time.Duration
}

// A Kind says which limit is meant.
type Kind string

// The limits that a provider may have, as in [Quota].
const (
	Requests Kind = "requests"
	Tokens   Kind = "tokens"
	Input    Kind = "input-tokens"
	Output   Kind = "output-tokens"
)

// A Left is what is left of a limit, as a response says.
type Left struct {
	Kind      Kind
	Limit     int // in a span that need not be a minute; 0: not said
	Remaining int
}

// Scarcest returns the smallest of what is left, in cost units of q, for [shaper.Shaper.AtMost]; ok reports whether
// anything is known. What is left of a limit that q does not have says nothing about calls that
// cost no share of it.
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

// A count is a number in a JSON document that is 0 or above. Anything else, such as a negative
// number, a fraction, a text, or what does not fit, is unknown, and does not keep the rest of the document from
// being read.
type count struct {
	n     int
	known bool
}

// UnmarshalJSON never returns an error.
func (c *count) UnmarshalJSON(text []byte) error {
	n, err := strconv.Atoi(string(text))
	if err != nil || n < 0 {
		*c = count{}
		return nil
	}
	*c = count{n: n, known: true}
	return nil
}

// A ceiling is the most tokens that a request allows an answer. What is missing or malformed allows none.
// A number that does not fit is the largest int: Quota.Cost bounds it.
type ceiling int

// UnmarshalJSON never returns an error.
func (c *ceiling) UnmarshalJSON(text []byte) error {
	if n, _ := strconv.ParseFloat(string(text), 64); n > 0 { // It is 0 for what is no number, and infinite for one that does not fit.
		*c = math.MaxInt
		if n < math.MaxInt32 {
			*c = ceiling(math.Ceil(n))
		}
	}
	return nil
}

// decode reads a JSON document, and reports whether it is one. Fields of another type than
// expected do not keep the other fields from being read.
func decode(document []byte, into any) bool {
	err := json.Unmarshal(document, into)
	if _, mistyped := err.(*json.UnmarshalTypeError); mistyped {
		return true
	}
	return err == nil
}

// without returns total without part, and not less than 0.
func without(total, part int) int { return max(0, total-max(0, part)) }

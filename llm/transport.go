package llm

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"example.com/leakybucket/shaper"
)

// Transport returns a Transport that paces calls by s within q: each call reserves the estimate of p, and settles with
// the usage that its response reports, a stream at its end. Of a stream that reports none, or whose body is closed before its
// end, the text that was seen counts; otherwise the estimate stands. At most 1 MiB of a JSON body, or of one event of a stream, is parsed, and at most 16 MiB of a
// body that is compressed; the bytes pass unchanged, however long they are.
//
// A call that is refused with 429 costs nothing. If no model has run, by the status of a response, what was reserved for the
// answer comes back. After a 429 all calls wait for as long as it says, or a second if it does not; one that no wait
// cures, or none as long as a call may wait ([shaper.Limits].MaxWait), holds nothing, and neither does a 529 or 503 without a
// time. An event of a stream that is a refusal holds the line, too, if it names a time. The remaining amounts in a response go
// to [shaper.Shaper.AtMost].
//
// The limits of s must be from [Quota.Limits]; for a level for each limit see [Levels.Transport]. The fields of the Transport may be changed before
// it is used: Base, Retry, and Limiter, for example to a tenant's. The retries of a client library are
// further requests, so set them to 0 if Retry is set.
func Transport(s *shaper.Shaper, q Quota, p Provider) *shaper.Transport {
	l := &Levels{Provider: p, Quota: q}
	return l.Transport(s)
}

// Transport is the function Transport for a line with these levels, whose limits are from [Levels.Limits], or from [Quota.Limits].
// Estimates learn as of one team.
func (l *Levels) Transport(s *shaper.Shaper) *shaper.Transport {
	return &shaper.Transport{
		Limiter: s,
		Each:    func(r *http.Request) ([]int, func(*http.Response) func() []int, error) { return l.each(s, r) },
		HoldFor: l.holdFor(s),
		MaxHold: max(usualMaxHold, s.Limits().MaxWait),
	}
}

// usualMaxHold is the MaxHold of a [shaper.Transport] that has none of its own.
const usualMaxHold = time.Minute

// holdFor returns the HoldFor of a Transport.
func (l *Levels) holdFor(s *shaper.Shaper) func(*http.Response) time.Duration {
	if l.Provider.HoldFor == nil {
		return nil
	}
	return func(r *http.Response) time.Duration { return Bearable(s, l.Provider.HoldFor(r)) }
}

// Bearable returns for how long a refusal is to hold a line that asks for so long: not at all if a call may not wait so long
// ([shaper.Limits].MaxWait), as no wait cures it then.
func Bearable(s *shaper.Shaper, asked time.Duration) time.Duration {
	if wait := s.Limits().MaxWait; wait > 0 && asked > wait {
		return 0
	}
	return asked
}

// each begins a call.
func (l *Levels) each(s *shaper.Shaper, r *http.Request) (costs []int, actual func(*http.Response) func() []int, err error) {
	model := ""
	if l.Estimates != nil || l.Provider.OutputFactor != nil {
		model = Model(r)
	}
	c, err := l.Call("", model, r)
	switch {
	case err == ErrBomb:
		return nil, nil, fmt.Errorf("%w: %w", shaper.ErrNegativeCost, err)
	case err != nil:
		return nil, nil, shaper.ErrNegativeCost
	}
	return c.Costs(s), func(response *http.Response) func() []int { return c.answer(s, response) }, nil
}

// answer meters a response to the call. It returns a function that returns what the call settles with when the body has ended.
func (c *Call) answer(s *shaper.Shaper, r *http.Response) func() []int {
	c.levels.Left(s, r.Header)
	body := &metered{ReadCloser: r.Body, call: c, line: s, meter: c.Answers(r.StatusCode, r.Header)}
	if r.Body != nil && r.Body != http.NoBody && body.meter.events != nil {
		// Any other body stays as it is: after an upgrade it can be written to.
		r.Body = body
	}
	return body.actual
}

// counted applies Counted, if there is one.
func (p Provider) counted(u Usage) Usage {
	if p.Counted == nil {
		return u
	}
	return p.Counted(u)
}

// A charge says what stays of what a call has reserved, by its response.
type charge int

const (
	chargeUsage   charge = iota // what the response reports; if it reports nothing, the estimate
	chargeNothing               // the provider has refused the call: it counts no more than if it had not been sent
	chargeRequest               // no model ran, and nobody has looked at the input
	chargeInput                 // no model ran, and the input may have been counted
)

// chargeOf returns what stays by the status of a response. For refusals see [Provider].HoldFor.
func chargeOf(status int) charge {
	switch status {
	case http.StatusTooManyRequests:
		return chargeNothing
	case http.StatusUnauthorized, http.StatusPaymentRequired, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed,
		http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType:
		return chargeRequest
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		return chargeInput
	}
	if status >= 500 { // 529 is Anthropic's overload.
		return chargeInput
	}
	return chargeUsage
}

// A complaint is an error as its document has it: in a response with a status for it, in a body with status 200, or in an event of
// a stream.
type complaint struct {
	Code, Type, Message word
	Status              word // Google's
	Details             []struct {
		Type       string `json:"@type"`
		RetryDelay string
		Violations []struct{ QuotaID string }
	} // Google's
	Metadata struct{ Headers map[string]word } // OpenRouter's: the fields of a refusal that it passes on in a body
}

// A word is a text or a number, as some servers write codes.
type word string

// UnmarshalJSON never returns an error.
func (w *word) UnmarshalJSON(text []byte) error {
	var s string
	if json.Unmarshal(text, &s) != nil {
		s = string(text)
	}
	*w = word(s)
	return nil
}

// complaintIn returns the error in a document, nil if there is none. isError says that the document is one itself, if no member of
// it is. Gemini's may be an array of one element, as for a stream without alt=sse.
func complaintIn(document []byte, isError bool) *complaint {
	if document = bytes.TrimSpace(document); bytes.HasPrefix(document, []byte("[")) {
		var elements []json.RawMessage
		if decode(document, &elements); len(elements) == 0 {
			return nil
		}
		document = elements[0]
	}
	var said struct {
		Type     word
		Error    json.RawMessage
		Response struct{ Error json.RawMessage } // the event response.failed
	}
	if !decode(document, &said) {
		return nil
	}
	c := new(complaint)
	for _, text := range [...]json.RawMessage{said.Error, said.Response.Error} {
		switch {
		case bytes.HasPrefix(text, []byte("{")):
			decode(text, c)
			return c
		case bytes.HasPrefix(text, []byte(`"`)):
			_ = c.Message.UnmarshalJSON(text) // It never fails.
			return c
		}
	}
	if !isError && said.Type != "error" {
		return nil
	}
	decode(document, c)
	return c
}

// final are the codes and types of refusals that no wait cures: a quota or credit that is used up, and accounts.
var final = []word{
	"insufficient_quota", "billing_hard_limit_reached", // OpenAI: 2389-research/tracker#547, NousResearch/hermes-agent#93455
	"billing_not_active", "account_deactivated", "access_terminated", // platform.openai.com/docs/guides/error-codes, 2026
	"usage_limit_reached", "usage_not_included", // OpenAI's Codex: senpi#1969, brekkylab/ailoy#431
	"exceeded_current_quota_error",          // Moonshot: platform.moonshot.ai/docs/api/errors, 2026
	"insufficient_balance", "billing_error", // DeepSeek, Anthropic: docs.claude.com/en/api/errors, 2026-11
}

// limits are the codes and types of refusals for a while.
var limits = []word{
	"rate_limit_exceeded", "rate_limit_error", // OpenAI, Anthropic
	"rate_limited", "too_many_requests", "429", // Mistral, Cohere, OpenRouter
	"throttlingException", "ThrottlingException", // Bedrock
}

// isFinal reports whether no wait cures what a refusal is about. Gemini says RetryInfo where one does: without it the quota of a day or
// the credit is used up (google-gemini/gemini-cli#22994, 2026-03), except where the text asks to try again, as Vertex AI's
// does (gemini-cli#14811). With a quota of a day it says a time after which that is still used up (gemini-cli#10925).
func (c *complaint) isFinal() bool {
	if slices.Contains(final, c.Code) || slices.Contains(final, c.Type) {
		return true
	}
	hasTime := false
	for _, d := range c.Details {
		hasTime = hasTime || strings.HasSuffix(d.Type, retryInfo)
		for _, v := range d.Violations {
			if strings.Contains(v.QuotaID, "PerDay") {
				return true
			}
		}
	}
	return c.Status == "RESOURCE_EXHAUSTED" && !hasTime && !asksAgain.MatchString(string(c.Message))
}

// isLimit reports whether the error is a refusal by the provider's limits.
func (c *complaint) isLimit() bool {
	return slices.Contains(limits, c.Code) || slices.Contains(limits, c.Type) || c.Status == "RESOURCE_EXHAUSTED" || c.isFinal()
}

const retryInfo = "google.rpc.RetryInfo"

// retryInfo returns the time of a google.rpc.RetryInfo, as in 5.7s or 10h17m5.7s; 0 if there is none.
func (c *complaint) retryInfo() (longest time.Duration) {
	for _, d := range c.Details {
		if strings.HasSuffix(d.Type, retryInfo) {
			span, _ := goDuration(d.RetryDelay)
			longest = max(longest, span)
		}
	}
	return longest
}

// header returns the fields of a refusal in a body.
func (c *complaint) header() http.Header {
	h := http.Header{}
	for name, value := range c.Metadata.Headers {
		h.Set(name, string(value))
	}
	return h
}

// asksAgain is a text that says that a wait cures, and askedTime one that says which:
//
//	Please try again in 14.036s. Please retry after 26 seconds. Please wait 6m0s
var (
	asksAgain = regexp.MustCompile(`(?i)\b(try again|retry)\b`)
	askedTime = regexp.MustCompile(`(?i)\b(?:try again|retry|wait)(?: your request)?(?: in| after| for)? ` +
		`(?:((?:[0-9]+(?:\.[0-9]+)?(?:ms|h|m|s))+)\b|([0-9]+(?:\.[0-9]+)?) ?(millisecond|sec|min|hour))`)
)

// inText returns the time in the text of the error; 0 if there is none. It is a last resort: texts change
// (openai/codex#10055, decolua/9router#3612, sub2api#5658).
func (c *complaint) inText() time.Duration {
	found := askedTime.FindStringSubmatch(string(c.Message))
	if found == nil {
		return 0
	}
	if d, ok := goDuration(found[1]); ok {
		return d
	}
	unit := map[string]time.Duration{"millisecond": time.Millisecond, "sec": time.Second, "min": time.Minute, "hour": time.Hour}
	return seconds(found[2], unit[strings.ToLower(found[3])])
}

// asks returns for how long an error asks to hold back: 0 if that does not help, or if it does not say.
func (c *complaint) asks() time.Duration {
	if c.isFinal() {
		return 0
	}
	return cmp.Or(c.retryInfo(), c.inText())
}

// shouldNotRetry is what OpenAI and Anthropic tell their clients about a response (openai-go v3.98.0, internal/requestconfig, 2026).
func shouldNotRetry(h http.Header) bool { return h.Get("X-Should-Retry") == "false" }

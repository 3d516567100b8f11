package gateway

import (
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"example.com/leakybucket/llm"
)

// StatusGone is the status in a [Record] of a call whose caller went before the response: while the call waited, with a
// Duration of 0, or at the provider. net/http has no name for it.
const StatusGone = 499

// A Record is the record of a call that has ended. As JSON it is a line of a usage log.
type Record struct {
	Time     time.Time `json:"time"` // when the call came
	Team     string    `json:"team"`
	Model    string    `json:"model"` // as the call names it
	Estimate Used      `json:"estimate"`
	Actual   *Actual   `json:"actual"`   // nil: none was reported, and the estimate was charged
	Waited   float64   `json:"waited"`   // seconds in line
	Duration float64   `json:"duration"` // seconds from leaving the line until the end of the response
	Status   int       `json:"status"`   // for the caller: 429 or 503 if the gateway has refused the call, or StatusGone

	HeldByProvider bool `json:"held_by_provider,omitempty"` // the provider had refused the call before
}

// Used has the tokens of an estimate.
type Used struct {
	Input  int `json:"input"`
	Output int `json:"output"`
}

// Actual is the usage of a call, in tokens, as its response reports.
type Actual struct {
	Used
	CacheRead  int `json:"cache_read"`
	CacheWrite int `json:"cache_write"`
}

// record returns the record of a call that has ended.
func (c *call) record() Record {
	r := Record{
		Time: c.arrived.UTC(), Team: c.team, Model: c.model,
		Estimate: Used{c.estimate.Input, c.estimate.Output},
		Waited:   c.waited.Seconds(), Status: c.status, HeldByProvider: c.retried,
	}
	if !c.left.IsZero() {
		r.Duration = time.Since(c.left).Seconds()
	}
	if c.reported != nil {
		u := *c.reported
		r.Actual = &Actual{Used{u.Input, u.Output}, u.CacheRead, u.CacheWrite}
	}
	return r
}

// longestModel bounds the kept bytes of the name of a model, which a caller writes.
const longestModel = 256

// modelOf returns the model that a call names in its body, or in its path as Gemini, Bedrock and Azure have it.
func modelOf(r *http.Request, body []byte) string {
	var named struct{ Model string }
	_ = json.Unmarshal(body, &named) // A body that is no such object names none.
	if named.Model == "" {
		named.Model = modelInPath(r)
	}
	return strings.Clone(named.Model[:min(len(named.Model), longestModel)]) // The rest would be kept with it.
}

func modelInPath(r *http.Request) string {
	parts := strings.Split(r.URL.EscapedPath(), "/")
	for i, part := range parts[:len(parts)-1] {
		if part == "models" || part == "model" || part == "deployments" {
			name := parts[i+1]
			if r.Method == http.MethodPost {
				name = methodOfGoogle.ReplaceAllString(name, "")
			}
			if plain, err := url.PathUnescape(name); err == nil {
				return plain
			}
		}
	}
	return ""
}

// methodOfGoogle is the method behind the model in a path of Google's, such as :generateContent or :countTokens. Names of
// Bedrock's models have a number behind a colon.
var methodOfGoogle = regexp.MustCompile(`:[A-Za-z]+$`)

// takenFor returns the entry in the ledger for a call that has ended.
func (g *Gateway) takenFor(estimate llm.Usage, m *llm.Meter) Taken {
	if m != nil {
		if counted, ok := m.Counted(); ok {
			return takenBy(counted)
		}
	}
	return takenBy(g.dialect.provider.Counted(estimate))
}

package gateway

import (
	"time"
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
		Waited: c.waited.Seconds(), Status: c.status, HeldByProvider: c.retried,
	}
	if c.metered != nil {
		u := c.metered.Estimate()
		r.Estimate = Used{u.Input, u.Output}
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

// taken returns the entry in the ledger for a call that has ended.
func (c *call) taken() Taken {
	u, _ := c.metered.Counted()
	return takenBy(u)
}

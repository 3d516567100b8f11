package llm

import (
	"net/http"

	"example.com/leakybucket/shaper"
)

// Transport returns a Transport that paces calls by s within q: each call reserves the estimate of p, and settles with
// the usage that its response reports, a stream at its end. If a response reports none, or its body is closed before its
// end, the estimate stands. At most 1 MiB of a JSON body, or of one event of a stream, is parsed, and at most 16 MiB of a
// body that is compressed by gzip; the bytes pass unchanged, however long they are.
//
// A call that is refused with 429 costs nothing, and a response with 401, 403 or 404 costs a request's share, as no
// model has run. After a 429 all calls wait for as long as it says, or a second if it does not; a 529 or 503 without a time
// holds nothing. The remaining amounts in a response go to [shaper.Shaper.AtMost].
//
// The limits of s must be from [Quota.Limits]. The fields of the Transport may be changed before
// it is used: Base, Retry, and Limiter, for example to a tenant's. The retries of a client library are
// further requests, so set them to 0 if Retry is set.
func Transport(s *shaper.Shaper, q Quota, p Provider) *shaper.Transport {
	return &shaper.Transport{
		Limiter: s,
		Cost:    func(r *http.Request) int { return reserve(r, q, p) },
		Actual:  func(r *http.Response) func() int { return actual(r, s, q, p) },
		HoldFor: p.HoldFor,
	}
}

// reserve returns the cost that a request reserves, or a negative number if the request can't be estimated.
func reserve(r *http.Request, q Quota, p Provider) int {
	if p.Estimate == nil {
		return q.Cost(Usage{})
	}
	u, err := p.Estimate(r)
	if err != nil {
		return -1
	}
	return q.Cost(p.counted(u))
}

// counted applies Counted, if there is one.
func (p Provider) counted(u Usage) Usage {
	if p.Counted == nil {
		return u
	}
	return p.Counted(u)
}

// actual tells s the remaining amounts in a response. It returns a function that returns the actual cost
// of the call when the body has ended, or a negative number if that is unknown.
func actual(r *http.Response, s *shaper.Shaper, q Quota, p Provider) func() int {
	if p.Left != nil {
		if n, ok := q.Scarcest(p.Left(r.Header)); ok {
			s.AtMost(n)
		}
	}
	body := &metered{ReadCloser: r.Body, meter: NewMeter(p, r.StatusCode, r.Header)}
	if r.Body != nil && r.Body != http.NoBody && body.meter.events != nil {
		// Any other body stays as it is: after an upgrade it can be written to.
		r.Body = body
	}
	return func() int { return body.cost(q) }
}

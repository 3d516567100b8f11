package llm

import (
	"net/http"

	"example.com/leakybucket/shaper"
)

// Transport returns a Transport that paces calls by s within q: each call reserves what p
// estimates, and settles with the usage that its response reports, of a stream at the stream's end. If a response
// reports none, or its body is closed before its end, the estimate stands. At most 1 MiB of a JSON body, or of one event
// of a stream, is looked at; the bytes pass unchanged, however long they are. Bodies that are
// compressed by gzip are read as well, up to 16 MiB of what they hold.
//
// A call that is refused with 429 has taken nothing, and one that is answered with 401, 403 or 404 a request's share, as no
// model has run. After a 429 all calls wait for as long as it says, or a second if it does not; a
// 529 or 503 that does not say so holds nothing. What a response says is left goes to [shaper.Shaper.AtMost].
//
// The limits of s are those of [Quota.Limits]. The fields of the Transport may be changed before
// it is used: Base, Retry, and Limiter, which may be that of a tenant. The retries of a client library are requests
// of their own, so set them to 0 where Retry is set.
func Transport(s *shaper.Shaper, q Quota, p Provider) *shaper.Transport {
	return &shaper.Transport{
		Limiter: s,
		Cost:    func(r *http.Request) int { return reserve(r, q, p) },
		Actual:  func(r *http.Response) func() int { return actual(r, s, q, p) },
		HoldFor: p.HoldFor,
	}
}

// reserve returns what a request reserves, or a negative number if the request can't be estimated.
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

// actual tells s what a response says is left, and returns the function that returns what the call has
// cost when the body has ended, or a negative number if that is unknown.
func actual(r *http.Response, s *shaper.Shaper, q Quota, p Provider) func() int {
	if p.Left != nil {
		if n, ok := q.Scarcest(p.Left(r.Header)); ok {
			s.AtMost(n)
		}
	}
	body := &metered{ReadCloser: r.Body, meter: NewMeter(p, r.StatusCode, r.Header)}
	if r.Body != nil && r.Body != http.NoBody && body.meter.events != nil {
		// Another body stays what it is. After an upgrade it can be written to.
		r.Body = body
	}
	return func() int { return body.cost(q) }
}

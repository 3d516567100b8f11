// Package httpin has the answers of an HTTP server to a request that waits for a Limiter, or is
// refused by it. Which answer a request gets is the middleware's to say.
package httpin

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/leakybucket/internal/httpfield"
)

// StatusClientGone is the status that access logs get for a client that has
// gone: nginx's 499, for which net/http has no name.
const StatusClientGone = 499

// Write sends the response.
func (a Response) Write(w http.ResponseWriter, r *http.Request) {
	if a.Status == StatusClientGone {
		WriteGone(w, r)
		return
	}
	h := w.Header()
	dropStale(h)
	// The fields are set as [http.Header.Set] would set them, but their values are in one
	// array, because a slice for each would be three quarters of all allocations.
	values := [...]string{"no-store", "application/problem+json", "nosniff", ""}
	h["Cache-Control"] = values[0:1:1]
	h["Content-Type"] = values[1:2:2]
	h["X-Content-Type-Options"] = values[2:3:3]
	if a.RetryAfter > 0 {
		httpfield.SetRetryAfter(h, a.RetryAfter, values[3:])
	}
	w.WriteHeader(a.Status)
	_, _ = w.Write(a.body) // An error means that the client has gone: there is nothing left to do.
}

// WriteGone ends the request of a client that has gone.
func WriteGone(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	dropStale(h)
	// In HTTP/2 the field would end the connection with all its other requests.
	// There it is not needed, because a client that has gone has reset its stream.
	if r.ProtoMajor < 2 {
		h.Set("Connection", "close")
	}
	w.WriteHeader(StatusClientGone)
}

// dropStale removes the fields that an outer handler may have set for the body
// of another response. Content-Encoding stays, as in [http.Error]: an outer
// handler that compresses the body sets it before (golang/go#66343).
func dropStale(h http.Header) {
	for _, field := range [...]string{"Content-Length", "Etag", "Last-Modified"} {
		delete(h, field)
	}
}

// A Response is the answer to a request that was not admitted.
type Response struct {
	*Problem
	RetryAfter int64 // in seconds; 0: trying again does not help
}

// A Problem is the body of a response that refuses a request. NewProblem makes one.
type Problem struct {
	Status int
	Detail string
	body   []byte // nil: none
}

// NewProblem returns a Problem whose body is made once, as most refusals say the same.
func NewProblem(status int, detail string) *Problem {
	// The texts are our own, in ASCII, so %q quotes them as JSON does.
	body := fmt.Appendf(nil, `{"title":%q,"status":%d,"detail":%q}`+"\n", http.StatusText(status), status, detail)
	// A ResponseWriter may append to the slice it is given. Without room behind it, append makes a
	// copy.
	return &Problem{status, detail, slices.Clip(body)}
}

// Later returns the response with some seconds more in its Retry-After, if it has one.
func (a Response) Later(seconds int64) Response {
	if a.RetryAfter > 0 {
		a.RetryAfter += seconds
	}
	return a
}

// CopyBack copies the fields that net/http's mux and parsers have written into r, the
// copy that was handed on, to outer, the request that came. Outer handlers read its
// pattern, path values and forms, and net/http removes the files of its MultipartForm.
// They may also read the rest of its body, which is no longer in the body that came if
// that was read ahead.
func CopyBack(outer, r *http.Request) {
	outer.Body = r.Body
	outer.Form, outer.PostForm, outer.MultipartForm = r.Form, r.PostForm, r.MultipartForm
	if outer.Pattern == r.Pattern {
		return
	}
	outer.Pattern = r.Pattern
	for rest := r.Pattern; ; {
		_, wildcard, ok := strings.Cut(rest, "{")
		if !ok {
			return
		}
		wildcard, rest, _ = strings.Cut(wildcard, "}")
		name := strings.TrimSuffix(wildcard, "...")
		outer.SetPathValue(name, r.PathValue(name))
	}
}

// AddServerTiming adds the header field Server-Timing, with how long a request has waited.
//
//go:noinline
func AddServerTiming(header http.Header, waited time.Duration) {
	header.Add("Server-Timing", "shaper;dur="+strconv.FormatFloat(float64(waited)/float64(time.Millisecond), 'f', 3, 64))
}

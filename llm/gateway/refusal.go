package gateway

import (
	"cmp"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"example.com/leakybucket/llm"
	"example.com/leakybucket/shaper"
)

// A failure is a response of the gateway in the provider's place.
type failure struct {
	status  int
	message string
	after   time.Duration // to come back after; 0: coming back does not help, or it is unknown when
}

// soonest is the shortest time after which a refused call is asked to come back: the least that Retry-After can say.
const soonest = time.Second

// longestSpread keeps a sum of times from overflowing.
const longestSpread = 365 * 24 * time.Hour

var (
	errNoToken = errors.New("gateway: the call has no valid token")
	errNoRoom  = errors.New("gateway: there is no room for a body that comes so slowly")
	errNoModel = errors.New("gateway: there is no room for the body that says the model of the call")
)

// WriteError responds to a call that was not admitted, in the provider's own format, which its clients understand. Status and
// times are as of [shaper.WriteError], with the field retry-after-ms besides.
func (g *Gateway) WriteError(w http.ResponseWriter, r *http.Request, err error) {
	f := g.failureOf(r, err)
	h := w.Header()
	f.setRetryAfter(h)
	if c, ok := r.Context().Value(callKey{}).(*call); ok {
		g = c.g
		c.setTiming(h)
	}
	g.setLeft(h)
	g.writeFailure(w, f)
}

// WriteRetryAfter sets the header fields that say after which time a call that was not admitted may come again, as [Gateway.WriteError]
// does, for a program whose own response has the status that it returns.
func (g *Gateway) WriteRetryAfter(h http.Header, r *http.Request, err error) (status int) {
	f := g.failureOf(r, err)
	h.Set("Cache-Control", "no-store")
	f.setRetryAfter(h)
	return f.status
}

// longestHeeded is the longest time that all client libraries wait for. Many take a longer Retry-After for none, so that they have
// used up their retries after two seconds, unless X-Should-Retry says false. docs/gateway.md has what each library does.
const longestHeeded = time.Minute

func (f failure) setRetryAfter(h http.Header) {
	if f.after > longestHeeded {
		h.Set("X-Should-Retry", "false")
	}
	if f.after > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64(math.Ceil(f.after.Seconds())), 10))
		h.Set("Retry-After-Ms", strconv.FormatInt(int64(math.Ceil(float64(f.after)/float64(time.Millisecond))), 10))
	}
}

// WriteUnreachable responds in the provider's format, for a handler behind the gateway that got no response of the provider.
// status is 502, 503 or 504. w must be the handler's; ok is false if its response has begun.
func (g *Gateway) WriteUnreachable(w http.ResponseWriter, status int) (ok bool) {
	a, isAttempt := w.(*attempt)
	if !isAttempt || a.status != 0 {
		return false
	}
	a.isOurs = true
	g.writeFailure(w, failure{status, "The provider can't be reached, or did not answer in time.", 0})
	return true
}

// WriteUnavailable responds in the provider's format to a call that none of several gateways with one line could serve. status is 502,
// if the provider may have answered the call, or 503, after which the call may come again after a time.
func (g *Gateway) WriteUnavailable(w http.ResponseWriter, status int, after time.Duration) {
	f := failure{status, "No replica of the gateway can serve the call just now.", after}
	if status == http.StatusBadGateway {
		f.message = "The replica of the gateway that had the call has gone, and the provider may have answered it."
	}
	f.setRetryAfter(w.Header())
	g.writeFailure(w, f)
}

// giveUpBody lets a refusal reach a client that is still sending. net/http sends no response before it has read some of the
// rest of the body, so the rest gets as much time as in [shaper.Middleware].
func giveUpBody(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor >= 2 || r.ContentLength == 0 {
		return
	}
	err := http.NewResponseController(w).SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if err != nil || r.ContentLength < 0 || r.ContentLength > 64<<10 {
		w.Header().Set("Connection", "close")
	}
}

func (g *Gateway) writeFailure(w http.ResponseWriter, f failure) {
	h := w.Header()
	for _, field := range [...]string{"Content-Length", "Etag", "Last-Modified"} {
		h.Del(field) // Another handler may have set them for the body of another response.
	}
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Type", "application/json")
	text, _ := json.Marshal(g.dialect.fail(h, f)) // There is nothing in it that JSON can't hold.
	w.WriteHeader(f.status)
	_, _ = w.Write(append(text, '\n')) // An error means that the client has gone.
}

// failureOf returns the failure for an error, with a random time that is drawn once for a call.
func (g *Gateway) failureOf(r *http.Request, err error) failure {
	f := failureOf(r, err)
	if spread := min(g.config.RetrySpread, longestSpread); spread > 0 && f.after > 0 {
		c, ok := r.Context().Value(callKey{}).(*call)
		if !ok {
			c = new(call)
		}
		if c.spread == 0 {
			c.spread = 1 + rand.N(spread)
		}
		f.after += c.spread - 1
	}
	return f
}

// failureOf returns the failure for an error.
func failureOf(r *http.Request, err error) failure {
	_, isTooLong := errors.AsType[*http.MaxBytesError](err)
	unknown, isUnknown := errors.AsType[*unknownModelError](err)
	switch {
	case isUnknown:
		return failure{http.StatusNotFound, unknown.told(), 0}
	case errors.Is(err, errNoToken):
		return failure{http.StatusUnauthorized, "The call has no valid token of the gateway.", 0}
	case isTooLong, errors.Is(err, llm.ErrBomb):
		return failure{http.StatusRequestEntityTooLarge, "The body of the call is too long.", 0}
	case errors.Is(err, errNoRoom):
		return failure{http.StatusServiceUnavailable, "There is no room for a body that comes so slowly.", soonest}
	case errors.Is(err, errNoModel):
		return failure{http.StatusServiceUnavailable, "There is no room for the body that says the model of the call.", soonest}
	}
	said := shaper.AnswerTo(r, err)
	f := failure{said.Status, cmp.Or(said.Detail, said.Title), said.RetryAfter}
	if refused, ok := errors.AsType[*shaper.RejectError](err); ok && f.after > 0 && refused.RetryAfter > 0 {
		// Clients heed milliseconds. While calls run for long and no more may run, it may be one, so clients would
		// use up all their retries at once.
		f.after = max(refused.RetryAfter, soonest)
	}
	return f
}

// object is a JSON object.
type object map[string]any

// byStatus returns the word for a status, or other if there is none.
func byStatus(words map[int]string, status int, other string) string {
	if word := words[status]; word != "" {
		return word
	}
	return other
}

// The form of OpenAI (openai.com's OpenAPI description 2.3.0, 2025).
func failOpenAI(_ http.Header, f failure) any {
	kind := byStatus(map[int]string{400: "invalid_request_error", 401: "invalid_request_error", 404: "invalid_request_error", 408: "invalid_request_error", 413: "invalid_request_error", 429: "requests"}, f.status, "server_error")
	code := any(nil)
	if word := byStatus(map[int]string{401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}, f.status, ""); word != "" {
		code = word
	}
	return object{"error": object{"message": f.message, "type": kind, "param": nil, "code": code}}
}

// The form and the types of docs.claude.com/en/api/errors, read in 2026-11.
func failAnthropic(_ http.Header, f failure) any {
	kind := byStatus(map[int]string{400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 408: "timeout_error", 413: "request_too_large", 429: "rate_limit_error"}, f.status, "api_error")
	return object{"type": "error", "error": object{"type": kind, "message": f.message}}
}

// The form of google.rpc.Status in JSON, with RetryInfo (google/rpc/error_details.proto).
func failGoogle(_ http.Header, f failure) any {
	kind := byStatus(map[int]string{400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 404: "NOT_FOUND", 408: "DEADLINE_EXCEEDED", 413: "INVALID_ARGUMENT", 429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}, f.status, "INTERNAL")
	failed := object{"code": f.status, "message": f.message, "status": kind}
	if f.after > 0 {
		failed["details"] = []object{{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": strconv.FormatFloat(f.after.Seconds(), 'f', -1, 64) + "s"}}
	}
	return object{"error": failed}
}

// The form of docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html, errors, read in 2026-11.
func failBedrock(h http.Header, f failure) any {
	if f.after > 0 { // The newer SDKs of AWS heed this field alone, in milliseconds, and only up to five seconds above their own backoff.
		h.Set("X-Amz-Retry-After", strconv.FormatInt(f.after.Milliseconds(), 10))
	}
	h.Set("X-Amzn-Errortype", byStatus(map[int]string{400: "ValidationException", 401: "AccessDeniedException", 404: "ResourceNotFoundException", 408: "ModelTimeoutException", 413: "ValidationException",
		429: "ThrottlingException", 503: "ServiceUnavailableException"}, f.status, "InternalServerException"))
	return object{"message": f.message}
}

package shaper_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper"
)

// unwritten is net/http's ResponseWriter, of which what is written is dropped, so that a
// request can be served again.
type unwritten struct {
	http.ResponseWriter
	header http.Header
	status int
}

func (u *unwritten) Header() http.Header         { return u.header }
func (u *unwritten) Write(p []byte) (int, error) { return len(p), nil }
func (u *unwritten) WriteHeader(status int)      { u.status = status }
func (u *unwritten) Unwrap() http.ResponseWriter { return u.ResponseWriter }

// A limiter is asked most when there is too much. The first allocation is what the
// middleware knows of the connection, which every request needs.
func TestMiddlewareAllocatesOnceForAnAdmittedRequestAndAtMostFourTimesForARefusal(t *testing.T) {
	for _, test := range []struct {
		name         string
		limits       shaper.Limits
		status, most int
	}{
		{"admitted", shaper.Limits{Rate: 1e9, Burst: 1e9, Depth: 1}, http.StatusOK, 1},
		// Three a day, so that Retry-After is a number of several digits.
		{"refused", shaper.Limits{Rate: 3. / (24 * 60 * 60)}, http.StatusTooManyRequests, 4},
	} {
		for _, withConnContext := range []bool{false, true} {
			for body, request := range map[string]string{
				"no body": "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
				"a body":  "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
			} {
				s := mustMake(t, test.limits)
				s.Allow()
				h := shaper.Middleware(s)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }))
				allocations := make(chan float64, 1) // The one request sends one, and so never blocks.
				addr := openServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					u := &unwritten{ResponseWriter: w, header: http.Header{}}
					wrong := 0
					n := testing.AllocsPerRun(1000, func() {
						clear(u.header)
						if h.ServeHTTP(u, r); u.status != test.status {
							wrong++
						}
					})
					if wrong > 0 {
						n = -1
					}
					allocations <- n
				}), shortTimeouts(time.Minute), func(s *http.Server) {
					if withConnContext {
						hooked(s)
					}
				})
				_, err := dial(t, addr).Write([]byte(request))
				require.NoError(t, err)
				got := realtime.Next(t, allocations)
				require.GreaterOrEqual(t, got, 0., "%s, %s: a request was answered otherwise", test.name, body)
				require.LessOrEqual(t, got, float64(test.most), "%s, %s, ConnContext %t", test.name, body, withConnContext)
			}
		}
	}
}

package serverconn_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper/internal/serverconn"
)

// deadlines counts how often the deadline for reading is set, for a refusal of its request.
type deadlines struct {
	http.ResponseWriter
	set int
}

func (d *deadlines) SetReadDeadline(time.Time) error { d.set++; return nil }

// A refusal sets a deadline for the rest of the body only if the rest has not come: else it
// would take half as long again. This also shows that the fields of net/http have the names by
// which that is found out.
func TestARefusalSetsADeadlineOnlyForABodyThatHasNotCome(t *testing.T) {
	const length = 2000 // With the header it is less than net/http's buffer.
	head := "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2000\r\n\r\n"
	body := strings.Repeat("x", length)
	for name, c := range map[string]struct {
		request string
		reads   int // by an outer handler
		wrap    func(io.ReadCloser) io.ReadCloser
		set     int
	}{
		"all of it":                {head + body, 0, nil, 0},
		"all of it, read in part":  {head + body, 10, nil, 0},
		"a part":                   {head + body[:length-1], 0, nil, 1},
		"a part, read in part":     {head + body[:length-1], 10, nil, 1},
		"none":                     {head, 0, nil, 1},
		"the next request, too":    {head + body + get("/"), 0, nil, 0},
		"all of a chunked one":     {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 0, nil, 1},
		"one that asks for itself": {"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello", 0, nil, 1},
		"one that is wrapped": {head + body, 0, func(b io.ReadCloser) io.ReadCloser {
			return struct {
				io.Reader
				io.Closer
			}{b, b}
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := make(chan int, 2) // There may be a next request.
			visit := serve(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.ReadFull(r.Body, make([]byte, c.reads))
				if c.wrap != nil {
					r.Body = c.wrap(r.Body)
				}
				d := &deadlines{ResponseWriter: w}
				serverconn.Of(d, r).Refuse(w.Header())
				found <- d.set
				w.Header().Set("Connection", "close")
				_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			})
			visit(c.request)
			require.Equal(t, c.set, realtime.Next(t, found))
		})
	}
}

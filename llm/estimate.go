package llm

import (
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// kept bounds the bytes of a request's body, and of one event of a response, that are parsed.
const kept = 1 << 20

// writesAnswer reports whether a request makes a model write: those that embed or rank texts, or judge them, write nothing.
func writesAnswer(r *http.Request) bool {
	return r.URL == nil || !slices.ContainsFunc([]string{"embed", "rerank", "moderations"}, func(part string) bool {
		return strings.Contains(strings.ToLower(r.URL.Path), part)
	})
}

// Peek reads the beginning of the body of a request, at most 1 MiB and a byte, and reports whether that is the whole body. Before
// each allocation it asks room for so many bytes, and stops reading if room returns false; a nil room allows all. The body can be
// read as before, and neither another Peek nor a [Provider] reads it again unless GetBody is set. A body that was not read to its
// end counts by ContentLength, or as 1 MiB if that is unknown. An error is the body's.
func Peek(r *http.Request, room func(bytes int) bool) (head []byte, whole bool, err error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, true, nil
	}
	p := peek(r, room)
	return p.read, p.whole, p.err
}

// peek makes the body of a request a peeked, and returns it. A RoundTripper must not change a request. But the bytes
// that have been read must be put back, and nobody else may use the body until RoundTrip has returned.
func peek(r *http.Request, room func(bytes int) bool) *peeked {
	p, ok := r.Body.(*peeked)
	if !ok {
		p = readAhead(r.Body, kept+1, r.ContentLength, room)
		r.Body = p
	}
	return p
}

// A peeked is a body whose beginning has been read. It can be read from there.
type peeked struct {
	io.Closer
	read  []byte // of the beginning; nil once it has been read again, so that a call under way does not keep it
	next  int    // of read
	rest  io.Reader
	whole bool  // the body has ended, within the most bytes that are read
	err   error // that ended the reading

	mu     sync.Mutex // net/http may still send a body when its response has come
	scan   *scan      // of what has come; nil: nobody has asked for it
	coding string     // of the body
	length int64      // that has come
	bomb   error      // ErrBomb, or nil
}

// Read implements [io.Reader].
func (p *peeked) Read(to []byte) (n int, err error) {
	if p.next == len(p.read) {
		n, err = p.rest.Read(to)
		p.passed(to[:n], err)
		return n, err
	}
	n = copy(to, p.read[p.next:])
	if p.next += n; p.next == len(p.read) {
		p.read, p.next = nil, 0
	}
	return n, nil
}

// firstPiece is the size of the first allocation for a body. Its Content-Length alone is no reason for more.
const firstPiece = 4 << 10

// readAhead reads the first most bytes of a body, or all of a shorter one. said is the length by its sender, or below 0. For room
// see [Peek].
func readAhead(body io.ReadCloser, most int, said int64, room func(bytes int) bool) *peeked {
	p := &peeked{Closer: body, rest: body}
	for len(p.read) < most {
		if len(p.read) == cap(p.read) {
			next := min(max(2*cap(p.read), firstPiece), most)
			if said >= int64(len(p.read)) && said <= int64(next) {
				next = min(int(said)+1, most) // With room for a byte that shows that the length is not true.
			}
			if room != nil && !room(next-cap(p.read)) {
				return p
			}
			p.read = append(make([]byte, 0, next), p.read...)
		}
		n, err := body.Read(p.read[len(p.read):cap(p.read)])
		p.read = p.read[:len(p.read)+n]
		switch {
		case err == io.EOF:
			p.whole = len(p.read) < most
			return p
		case err != nil:
			p.err, p.rest = err, failed{err} // The body fails again where it has failed.
			return p
		}
	}
	return p
}

// failed is the rest of a body whose reading has failed.
type failed struct{ err error }

func (f failed) Read([]byte) (int, error) { return 0, f.err }

// Rest returns the body of a request behind what [Peek] has returned, for a program that has that. When it has passed, Estimate of a
// [Provider] counts the whole body: see there.
func Rest(r *http.Request) io.ReadCloser {
	if p, ok := r.Body.(*peeked); ok {
		p.read, p.next = nil, 0
	}
	return r.Body
}

// times returns a·b, at most the largest int. A b of 0 counts as 1.
func times(a, b ceiling) int {
	if b = max(b, 1); a > math.MaxInt/b {
		return math.MaxInt
	}
	return int(a * b)
}

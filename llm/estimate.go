package llm

import (
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
)

// kept bounds the bytes of a request's body, and of one event of a response, that are parsed.
const kept = 1 << 20

// An ask has the fields of a request's body that bound the length of the answer, in all known
// APIs.
type ask struct {
	MaxTokens           ceiling `json:"max_tokens"`            // OpenAI's older name; Anthropic
	MaxCompletionTokens ceiling `json:"max_completion_tokens"` // OpenAI, Chat Completions
	MaxOutputTokens     ceiling `json:"max_output_tokens"`     // OpenAI, Responses
	MaxTokensToSample   ceiling `json:"max_tokens_to_sample"`  // Anthropic, Text Completions
	MaxGenLen           ceiling `json:"max_gen_len"`           // Bedrock: Llama
	N                   ceiling `json:"n"`
	BestOf              ceiling `json:"best_of"`
	GenerationConfig    struct {
		MaxOutputTokens ceiling `json:"maxOutputTokens"`
		CandidateCount  ceiling `json:"candidateCount"`
	} `json:"generationConfig"` // Gemini
	InferenceConfig struct {
		MaxTokens    ceiling `json:"maxTokens"`
		MaxNewTokens ceiling `json:"max_new_tokens"`
	} `json:"inferenceConfig"` // Bedrock: Converse; Nova
	TextGenerationConfig struct {
		MaxTokenCount ceiling `json:"maxTokenCount"`
	} `json:"textGenerationConfig"` // Bedrock: Titan
}

// asked returns the input tokens of a request, by the length of its body, and its ask. Images and
// the like count by their length too. The ask of a body that is not JSON, or longer than 1 MiB, is
// zero.
func asked(r *http.Request) (input int, a ask, err error) {
	if takesNone(r) {
		return 0, ask{}, nil
	}
	head, length, err := peekRequest(r)
	if err != nil {
		return 0, ask{}, err
	}
	if int64(len(head)) == length {
		decode(head, &a)
	}
	return int(min(length/4+min(length%4, 1), math.MaxInt)), a, nil
}

// takesNone reports whether a request uses no tokens of a quota, however long its body is, so that it costs only a request's
// share: it counts the tokens of a prompt, sends a file, or begins a batch. Providers have limits of their own for these
// (docs.claude.com/en/api/rate-limits, platform.openai.com/docs/guides/batch, ai.google.dev/gemini-api/docs/rate-limits).
func takesNone(r *http.Request) bool {
	return r.URL != nil && slices.ContainsFunc(takingNone, func(end string) bool { return strings.HasSuffix(r.URL.Path, end) })
}

// writesAnswer reports whether a request makes a model write: those that embed or rank texts, or judge them, write nothing.
func writesAnswer(r *http.Request) bool {
	return r.URL == nil || !slices.ContainsFunc([]string{"embed", "rerank", "moderations"}, func(part string) bool {
		return strings.Contains(strings.ToLower(r.URL.Path), part)
	})
}

// takingNone are the ends of the paths of such requests.
var takingNone = []string{
	"/count_tokens",                     // Anthropic
	"/responses/input_tokens", "/parts", // OpenAI; a file may be sent in parts
	":countTokens", ":batchGenerateContent", ":asyncBatchEmbedContent", // Gemini
	"/count-tokens",      // Bedrock
	"/files", "/batches", // several
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

// peekRequest returns the first bytes of the body of a request, at most 1 MiB of them, and its length,
// which is never below the number of bytes read. The request can be sent as before, and its
// ContentLength and GetBody are unchanged.
func peekRequest(r *http.Request) (head []byte, length int64, err error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, 0, nil
	}
	length = r.ContentLength
	if r.GetBody != nil {
		body, err := r.GetBody()
		if err != nil {
			return nil, 0, err
		}
		defer body.Close() // Nothing could be done about an error.
		head, err = io.ReadAll(io.LimitReader(body, kept+1))
		if err != nil {
			return nil, 0, err
		}
	} else {
		p := peek(r, nil)
		if head = p.read; !p.whole && length < 0 {
			length = kept + 1
		}
	}
	return head[:min(len(head), kept)], max(int64(len(head)), length), nil
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
}

// Read implements [io.Reader].
func (p *peeked) Read(to []byte) (n int, err error) {
	if p.next == len(p.read) {
		return p.rest.Read(to)
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

// times returns a·b, at most the largest int. A b of 0 counts as 1.
func times(a, b ceiling) int {
	if b = max(b, 1); a > math.MaxInt/b {
		return math.MaxInt
	}
	return int(a * b)
}

package llm

import (
	"bytes"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
)

// kept is how much of the body of a request, and of one event of a response, is looked at.
const kept = 1 << 20

// An ask is what a request's body says about how long the answer may be, in the fields of the
// APIs that are known.
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

// asked returns how many tokens the body of a request takes as input, by its length, and what it asks for.
// Images and the like count by their length too. A body that is not JSON, or longer than 1 MiB,
// asks for nothing.
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

// takesNone reports whether a request takes no tokens of a quota, however long its body is, so that it costs a request's share
// alone: it counts the tokens of a prompt, for which no model runs, sends a file, or begins a batch. Providers have limits of their
// own for these (docs.claude.com/en/api/rate-limits, platform.openai.com/docs/guides/batch, ai.google.dev/gemini-api/docs/rate-limits).
func takesNone(r *http.Request) bool {
	return r.URL != nil && slices.ContainsFunc(takingNone, func(end string) bool { return strings.HasSuffix(r.URL.Path, end) })
}

// takingNone are the ends of the paths of such requests.
var takingNone = []string{
	"/count_tokens",                     // Anthropic
	"/responses/input_tokens", "/parts", // OpenAI; a file may be sent in parts
	":countTokens", ":batchGenerateContent", ":asyncBatchEmbedContent", // Gemini
	"/count-tokens",      // Bedrock
	"/files", "/batches", // several
}

// Peek reads the beginning of the body of a request, at most 1 MiB of it, and reports whether that is the whole body. The
// body can be read as before, and neither another Peek nor a [Provider] reads it again
// unless GetBody is set. An error is that of the body.
func Peek(r *http.Request) (head []byte, whole bool, err error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, true, nil
	}
	p := peek(r)
	return p.read[:min(len(p.read), kept)], p.err == nil && len(p.read) <= kept, p.err
}

// peekRequest returns the first bytes of the body of a request, at most 1 MiB of them, and its length,
// which is at least that of what was read. The request can be sent as before, and its ContentLength
// and GetBody are as they were.
func peekRequest(r *http.Request) (head []byte, length int64, err error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, 0, nil
	}
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
		head = peek(r).read
	}
	length = max(int64(len(head)), r.ContentLength)
	return head[:min(len(head), kept)], length, nil
}

// A peeked is a body whose beginning has been read.
type peeked struct {
	joined
	read []byte // at most a byte more than is kept
	err  error  // with which reading has ended
}

// peek returns the body of a request, which it makes a peeked. A RoundTripper must not change a request. But what
// has been read of its body must be put back, and nobody else may use the body until RoundTrip has returned.
func peek(r *http.Request) *peeked {
	if p, ok := r.Body.(*peeked); ok {
		return p
	}
	// A length is what a client says, so only so much is allocated for it before the bytes come.
	p := new(peeked)
	p.read, p.joined, p.err = readAhead(r.Body, kept+1, min(max(r.ContentLength, 0), 128<<10))
	r.Body = p
	return p
}

// readAhead reads the beginning of a body, so many bytes at most, of which it expects some. It returns the beginning, a body
// that can be read as before, and the error with which reading has ended.
func readAhead(body io.ReadCloser, most, expected int64) (head []byte, whole joined, err error) {
	read := bytes.NewBuffer(make([]byte, 0, expected+bytes.MinRead))
	_, err = read.ReadFrom(io.LimitReader(body, most))
	rest := io.Reader(body)
	if err != nil {
		// The body fails again where it has failed.
		rest = failed{err}
	}
	return read.Bytes(), joined{io.MultiReader(bytes.NewReader(read.Bytes()), rest), body}, err
}

// joined is a body of parts.
type joined struct {
	io.Reader
	io.Closer
}

// failed is the rest of a body whose reading has failed.
type failed struct{ err error }

func (f failed) Read([]byte) (int, error) { return 0, f.err }

// times returns a product, where a factor b of 0 counts as 1. What does not fit is the largest int.
func times(a, b ceiling) int {
	if b = max(b, 1); a > math.MaxInt/b {
		return math.MaxInt
	}
	return int(a * b)
}

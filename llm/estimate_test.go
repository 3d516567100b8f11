package llm_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/llm"
)

// padded returns a body of so many bytes that asks what the JSON fields say.
func padded(length int, fields string) string {
	body := `{"messages":[{"role":"user","content":"`
	end := `"}]`
	if fields != "" {
		end += "," + fields
	}
	end += "}"
	return body + strings.Repeat("x", length-len(body)-len(end)) + end
}

func TestEstimates(t *testing.T) {
	const most = math.MaxInt
	for _, tt := range []struct {
		name     string
		p        llm.Provider
		path     string
		body     string
		reserved llm.Usage
	}{
		{"OpenAI, older", llm.OpenAI, "/v1/chat/completions", padded(400, `"max_tokens":300`), llm.Usage{Input: 100, Output: 300}},
		{"OpenAI, newer", llm.OpenAI, "/v1/chat/completions", padded(401, `"max_completion_tokens":300`), llm.Usage{Input: 101, Output: 300}},
		{"OpenAI, Responses", llm.OpenAI, "/v1/responses", padded(400, `"max_output_tokens":300`), llm.Usage{Input: 100, Output: 300}},
		{"OpenAI, several", llm.OpenAI, "/v1/chat/completions", padded(400, `"max_tokens":300,"n":4`), llm.Usage{Input: 100, Output: 1200}},
		{"OpenAI, the best of several", llm.OpenAI, "/v1/completions", padded(400, `"max_tokens":300,"n":2,"best_of":5`), llm.Usage{Input: 100, Output: 1500}},
		{"OpenAI, unbounded", llm.OpenAI, "/v1/chat/completions", padded(400, ""), llm.Usage{Input: 100}},
		{"OpenAI, null", llm.OpenAI, "/v1/chat/completions", padded(400, `"max_tokens":null`), llm.Usage{Input: 100}},
		{"Anthropic", llm.Anthropic, "/v1/messages", padded(400, `"max_tokens":1024`), llm.Usage{Input: 100, Output: 1024}},
		{"Anthropic, older", llm.Anthropic, "/v1/complete", padded(400, `"max_tokens_to_sample":256`), llm.Usage{Input: 100, Output: 256}},
		{"Gemini", llm.Gemini, "/v1beta/models/m:generateContent", padded(400, `"generationConfig":{"maxOutputTokens":512}`), llm.Usage{Input: 100, Output: 512}},
		{"Gemini, several", llm.Gemini, "/v1beta/models/m:generateContent", padded(400, `"generationConfig":{"maxOutputTokens":512,"candidateCount":2}`), llm.Usage{Input: 100, Output: 1024}},
		{"Bedrock, Converse", llm.Bedrock, "/model/m/converse", padded(400, `"inferenceConfig":{"maxTokens":700}`), llm.Usage{Input: 100, Output: 700}},
		{"Bedrock, Nova", llm.Bedrock, "/model/m/invoke", padded(400, `"inferenceConfig":{"max_new_tokens":700}`), llm.Usage{Input: 100, Output: 700}},
		{"Bedrock, Claude", llm.Bedrock, "/model/m/invoke", padded(400, `"max_tokens":700`), llm.Usage{Input: 100, Output: 700}},
		{"Bedrock, Llama", llm.Bedrock, "/model/m/invoke", padded(400, `"max_gen_len":700`), llm.Usage{Input: 100, Output: 700}},
		{"Bedrock, Titan", llm.Bedrock, "/model/m/invoke", padded(400, `"textGenerationConfig":{"maxTokenCount":700}`), llm.Usage{Input: 100, Output: 700}},
		{"Bedrock, unbounded", llm.Bedrock, "/model/m/converse-stream", padded(400, ""), llm.Usage{Input: 100, Output: 64_000}},
		{"Bedrock, embeddings", llm.Bedrock, "/model/amazon.titan-embed-text-v2:0/invoke", padded(400, ""), llm.Usage{Input: 100}},
		{"Bedrock, ranks", llm.Bedrock, "/model/cohere.rerank-v3-5:0/invoke", padded(400, ""), llm.Usage{Input: 100}},
		{"Bedrock, no inference", llm.Bedrock, "/guardrail/g/apply", padded(400, ""), llm.Usage{Input: 100}},
		{"too large", llm.OpenAI, "/", padded(400, `"max_tokens":9223372036854775808`), llm.Usage{Input: 100, Output: most}},
		{"too large, and several", llm.OpenAI, "/", padded(400, `"max_tokens":1e300,"n":1e300`), llm.Usage{Input: 100, Output: most}},
		{"too large for a float", llm.OpenAI, "/", padded(400, `"max_tokens":1e999`), llm.Usage{Input: 100, Output: most}},
		{"too large, as it is", llm.Anthropic, "/", padded(400, `"max_tokens":1e300`), llm.Usage{Input: 100, Output: most}},
		{"a fraction", llm.Anthropic, "/", padded(400, `"max_tokens":10.5`), llm.Usage{Input: 100, Output: 11}},
		{"none, which is known", llm.Anthropic, "/", padded(400, `"max_tokens":0`), llm.Usage{Input: 100, Output: 1}},
		{"without a bound", llm.OpenAI, "/", padded(400, `"n_predict":-1`), llm.Usage{Input: 100}},
		{"negative", llm.Anthropic, "/", padded(400, `"max_tokens":-5`), llm.Usage{Input: 100}},
		{"of another type", llm.Anthropic, "/", padded(400, `"max_tokens":"many","n":{}`), llm.Usage{Input: 100}},
		{"the rest is read", llm.Gemini, "/", padded(400, `"messages":7,"generationConfig":{"candidateCount":[],"maxOutputTokens":512}`), llm.Usage{Input: 100, Output: 512}},
		{"of another form", llm.Gemini, "/", padded(400, `"generationConfig":[1]`), llm.Usage{Input: 100}},
		{"no JSON", llm.OpenAI, "/v1/audio/transcriptions", strings.Repeat("\x00", 9), llm.Usage{Input: 3}},
		{"cut off", llm.OpenAI, "/", `{"max_tokens":300`, llm.Usage{Input: 5}},
		{"no body", llm.OpenAI, "/v1/models", "", llm.Usage{}},
		{"Anthropic, tokens are counted", llm.Anthropic, "/v1/messages/count_tokens", padded(400, ""), llm.Usage{}},
		{"Anthropic, a batch", llm.Anthropic, "/v1/messages/batches", padded(400, ""), llm.Usage{}},
		{"OpenAI, tokens are counted", llm.OpenAI, "/v1/responses/input_tokens", padded(400, ""), llm.Usage{}},
		{"OpenAI, a file", llm.OpenAI, "/v1/files", padded(400, ""), llm.Usage{}},
		{"OpenAI, a part of a file", llm.OpenAI, "/v1/uploads/upload_1/parts", padded(400, ""), llm.Usage{}},
		{"OpenAI, a batch", llm.OpenAI, "/v1/batches", padded(400, ""), llm.Usage{}},
		{"Gemini, tokens are counted", llm.Gemini, "/v1beta/models/m:countTokens", padded(400, ""), llm.Usage{}},
		{"Gemini, a batch of embeddings", llm.Gemini, "/v1beta/models/m:asyncBatchEmbedContent", padded(400, ""), llm.Usage{}},
		{"Gemini, a batch", llm.Gemini, "/v1beta/models/m:batchGenerateContent", padded(400, ""), llm.Usage{}},
		{"Bedrock, tokens are counted", llm.Bedrock, "/model/m/count-tokens", padded(400, ""), llm.Usage{}},
	} {
		r, err := http.NewRequest(http.MethodPost, "http://api"+tt.path, strings.NewReader(tt.body))
		require.NoError(t, err)
		u, err := tt.p.Estimate(r)
		require.NoError(t, err, tt.name)
		require.Equal(t, tt.reserved, u, tt.name)
	}
}

// What a call reserves follows from what its provider counts.
func TestWhatProvidersCount(t *testing.T) {
	u := llm.Usage{Input: 100, CacheRead: 10, CacheWrite: 5, Output: 300}
	require.Equal(t, llm.Usage{Input: 115, Output: 185}, llm.OpenAI.Counted(u), "max(300, 115)")
	require.Equal(t, llm.Usage{Input: 100, CacheWrite: 5, Output: 300}, llm.Anthropic.Counted(u))
	require.Equal(t, llm.Usage{Input: 100, CacheRead: 10, CacheWrite: 5}, llm.Gemini.Counted(u))
	require.Equal(t, llm.Usage{Input: 100, CacheWrite: 5, Output: 300}, llm.Bedrock.Counted(u))
}

// onlyReader hides what a reader is, so that a request has neither a length nor a GetBody.
type onlyReader struct{ io.Reader }

// An estimate leaves a request as it was, byte for byte.
func TestAnEstimateLeavesTheBody(t *testing.T) {
	for _, length := range []int{0, 1, 400, llm.Kept - 1, llm.Kept, llm.Kept + 1, 3 * llm.Kept} {
		text := strings.Repeat("{", length)
		pieces := iotest.OneByteReader
		if length > 400 {
			pieces = iotest.HalfReader // Single bytes would take the race detector seconds.
		}
		for name, body := range map[string]io.Reader{
			"with GetBody": strings.NewReader(text),
			"without":      onlyReader{strings.NewReader(text)},
			"in pieces":    onlyReader{pieces(strings.NewReader(text))},
		} {
			name = fmt.Sprint(name, " ", length)
			r, err := http.NewRequest(http.MethodPost, "http://api/", body)
			require.NoError(t, err)
			hadGetBody, hadLength := r.GetBody != nil, r.ContentLength
			u, err := llm.Anthropic.Estimate(r)
			require.NoError(t, err)
			known := length
			if !hadGetBody {
				known = min(length, llm.Kept+1) // More is not known.
			}
			require.Equal(t, (known+3)/4, u.Input, name)
			require.Equal(t, hadLength, r.ContentLength, name)
			require.Equal(t, hadGetBody, r.GetBody != nil, name)
			sent, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			require.True(t, text == string(sent), name)
			if hadGetBody {
				again, err := r.GetBody()
				require.NoError(t, err)
				sent, err = io.ReadAll(again)
				require.NoError(t, err)
				require.True(t, text == string(sent), name)
			}
			require.NoError(t, r.Body.Close())
		}
	}
}

// A client may say any length.
func TestAnEstimateOfTheGreatestLength(t *testing.T) {
	r, err := http.NewRequest(http.MethodPost, "http://api/", onlyReader{strings.NewReader("{}")})
	require.NoError(t, err)
	r.ContentLength = math.MaxInt64
	u, err := llm.OpenAI.Estimate(r)
	require.NoError(t, err)
	require.Equal(t, int(min(int64(1)<<61, math.MaxInt)), u.Input)
}

// The sender of a body that fails gets its error, behind the bytes before it, and closing reaches the body.
func TestAnEstimateOfABodyThatFails(t *testing.T) {
	broken := errors.New("broken")
	closed := false
	r, err := http.NewRequest(http.MethodPost, "http://api/", nil)
	require.NoError(t, err)
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(strings.NewReader("abcde"), iotest.ErrReader(broken)), closeFunc(func() { closed = true })}
	u, err := llm.OpenAI.Estimate(r)
	require.NoError(t, err)
	require.Equal(t, llm.Usage{Input: 2}, u)
	sent, err := io.ReadAll(r.Body)
	require.Equal(t, "abcde", string(sent))
	require.Equal(t, broken, err)
	require.NoError(t, r.Body.Close())
	require.True(t, closed)

	r.GetBody = func() (io.ReadCloser, error) { return nil, broken }
	_, err = llm.OpenAI.Estimate(r)
	require.Equal(t, broken, err)
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(iotest.ErrReader(broken)), nil }
	_, err = llm.OpenAI.Estimate(r)
	require.Equal(t, broken, err)
}

type closeFunc func()

func (f closeFunc) Close() error {
	f()
	return nil
}

func FuzzEstimate(f *testing.F) {
	f.Add([]byte(padded(100, `"max_tokens":300,"n":2`)))
	f.Add([]byte(`{"generationConfig":{"maxOutputTokens":1e99}}`))
	f.Add([]byte(`{"inferenceConfig":{"maxTokens":-1}}`))
	q := llm.Quota{Requests: 10, Tokens: 1000, Input: 500, Output: 500}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, p := range providers {
			r, err := http.NewRequest(http.MethodPost, "http://api/model/m/converse", onlyReader{bytes.NewReader(body)})
			require.NoError(t, err)
			u, err := p.Estimate(r)
			require.NoError(t, err)
			require.Equal(t, (len(body)+3)/4, u.Input)
			require.GreaterOrEqual(t, u.Output, 0)
			cost := q.Cost(p.Counted(u))
			require.True(t, 100_000 <= cost && cost <= 1_000_000, "%d", cost)
			sent, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			require.True(t, bytes.Equal(body, sent))
		}
	})
}

var providers = map[string]llm.Provider{"OpenAI": llm.OpenAI, "Anthropic": llm.Anthropic, "Gemini": llm.Gemini, "Bedrock": llm.Bedrock}

// A pair is estimated by what its latest calls took, and never above what a call asks for.
func TestEstimatesFollowWhatCallsTake(t *testing.T) {
	asked := llm.Usage{Input: 1000, Output: 32_000}
	var e llm.Estimates
	require.Equal(t, llm.Usage{Input: 1000, Output: 1000}, e.Estimate("gold", "m", asked), "before the first")
	require.Equal(t, llm.Usage{Input: 1000, Output: 200}, e.Estimate("gold", "m", llm.Usage{Input: 1000, Output: 200}))
	require.Equal(t, llm.Usage{Input: 1000, Output: 1000}, e.Estimate("gold", "m", llm.Usage{Input: 1000}), "it does not bound its answer")

	e.Learn("gold", "m", asked, llm.Usage{Input: 80, CacheWrite: 20, Output: 400}, 1600)
	for _, tt := range []struct{ input, most, wantInput, want int }{
		{1000, 32_000, 100, 400},
		{2001, 32_000, 201, 400}, // rounded up
		{1000, 300, 100, 300},
		{1000, 0, 100, 400},
	} {
		require.Equal(t, llm.Usage{Input: tt.wantInput, Output: tt.want}, e.Estimate("gold", "m", llm.Usage{Input: tt.input, Output: tt.most}))
	}
	e.Learn("gold", "m", asked, llm.Usage{Input: 290, Output: 1000}, 4000)
	// (0.9·100 + 290)/(0.9·1000 + 1000) of the input, and (0.9·400 + 1000)/1.9 of output.
	require.Equal(t, llm.Usage{Input: 200, Output: 716}, e.Estimate("gold", "m", asked))

	require.Equal(t, llm.Usage{Input: 200, Output: 716}, e.Estimate("batch", "m", asked), "a team that is new to the model")
	require.Equal(t, llm.Usage{Input: 1000, Output: 1000}, e.Estimate("gold", "n", asked), "another model")

	e.Learn("none", "m", asked, llm.Usage{}, 0)
	require.Equal(t, llm.Usage{Input: 0, Output: 1}, e.Estimate("none", "m", asked), "at least one token")
}

// Callers choose the names of models, so the pairs that were used longest ago are forgotten.
func TestEstimatesForgetThePairThatWasUsedLongestAgo(t *testing.T) {
	asked := llm.Usage{Input: 100, Output: 5000}
	var e llm.Estimates
	for i := range 10_000 {
		e.Learn(fmt.Sprint(i), "m", asked, llm.Usage{Output: 7}, 0)
	}
	require.Equal(t, 7, e.Estimate("0", "m", asked).Output, "and so it is used last")
	e.Learn("more", "m", asked, llm.Usage{Output: 107}, 0)
	require.Equal(t, 7, e.Estimate("0", "m", asked).Output)
	require.Equal(t, 17, e.Estimate("1", "m", asked).Output, "as of any team")
	require.Equal(t, 7, e.Estimate("2", "m", asked).Output)

	for i := range 10_000 {
		e.Learn("0", fmt.Sprint(i), asked, llm.Usage{Output: 7}, 0)
	}
	require.Equal(t, 1000, e.Estimate("0", "m", asked).Output)
}

// What has been learned goes on in another process, and what was used last has room first.
func TestEstimatesGoOnInAnotherProcess(t *testing.T) {
	var e llm.Estimates
	for i := range 300 {
		model := fmt.Sprint("model-", i%20)
		e.Learn(fmt.Sprint("team-", i), model, llm.Usage{Input: 100}, llm.Usage{Input: 50, CacheRead: 30, Output: i + 1}, 4*i+8)
	}
	likely := func(e *llm.Estimates, team, model int) llm.Usage {
		return e.Estimate(fmt.Sprint("team-", team), fmt.Sprint("model-", model), llm.Usage{Input: 1000})
	}
	var all, some, none llm.Estimates
	require.NoError(t, all.Restore(e.Save(1<<20)))
	saved := e.Save(10_000)
	require.LessOrEqual(t, len(saved), 10_000)
	require.Greater(t, len(saved), 9_800)
	require.NoError(t, some.Restore(saved))
	require.NoError(t, none.Restore(e.Save(0)))
	for i := range 300 {
		require.Equal(t, likely(&e, i, i%20), likely(&all, i, i%20))
		if i >= 250 {
			require.Equal(t, likely(&e, i, i%20), likely(&some, i, i%20))
		}
	}
	require.Equal(t, llm.Usage{Input: 1000, Output: 1000}, likely(&none, 299, 19))
	require.Equal(t, likely(&e, 1000, 19), likely(&some, 0, 19), "a pair without room is estimated by its model")

	// Restored ones take the place of others, and are forgotten in the order in which they were used.
	some.Learn("team-299", "model-19", llm.Usage{Input: 1}, llm.Usage{Input: 1, Output: 1}, 0)
	some.Learn("own", "own", llm.Usage{Input: 1}, llm.Usage{Input: 1, Output: 5}, 0)
	require.NoError(t, some.Restore(e.Save(1<<20)))
	require.Equal(t, likely(&e, 299, 19), likely(&some, 299, 19))
	require.Equal(t, 5, some.Estimate("own", "own", llm.Usage{}).Output)
	for _, damaged := range []string{
		``, `{`, `{}`, `{"version":2}`, `{"version":1,"pairs":[{"model":"m","sums":[-1,0,0,0,0,0]}]}`, `{"version":1,"models":[{"model":"m","sums":[1e300,0,0,0,0,0]}]}`,
		`{"version":1,"models":[{"model":"good","sums":[9,9,9,9,9,9]}],"pairs":[{"model":"` + strings.Repeat("m", 257) + `","sums":[1,1,1,1,1,1]}]}`,
	} {
		require.ErrorContains(t, none.Restore([]byte(damaged)), "llm: the saved estimates ", damaged)
	}
	require.Equal(t, 1000, none.Estimate("a", "good", llm.Usage{}).Output, "what is damaged changes nothing")
}

package llmtest_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/llm"
	"example.com/leakybucket/llm/llmtest"
)

var dialects = []llmtest.Dialect{llmtest.OpenAI, llmtest.Anthropic, llmtest.Gemini, llmtest.Bedrock}

func request(d llmtest.Dialect, input, most int, stream bool) *http.Request {
	return llmtest.NewRequest(context.Background(), d, llmtest.Call{Input: input, Most: most, Stream: stream})
}

// send sends a request and reads the answer.
func send(t testing.TB, s *llmtest.Server, r *http.Request) (*http.Response, string) {
	response, err := s.RoundTrip(r)
	require.NoError(t, err)
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	return response, string(text)
}

// What each provider counts, and when.
func TestWhatACallTakesOfTheLimits(t *testing.T) {
	q := llm.Quota{Requests: 60, Tokens: 60_000, Input: 60_000, Output: 60_000}
	for i, want := range []llm.Quota{
		{Requests: 1, Tokens: 1000},                         // max(1000, 200)
		{Requests: 1, Tokens: 550, Input: 150, Output: 400}, // without the cached input, and with what was produced
		{Requests: 1, Tokens: 200, Input: 200},              // input alone
		{Requests: 1, Tokens: 550},                          // settled
	} {
		for _, stream := range []bool{false, true} {
			d := dialects[i]
			t.Run(fmt.Sprint(d, " stream=", stream), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := llmtest.New(llmtest.Config{Dialect: d, Quota: q, Answer: func(c llmtest.Call) llmtest.Answer {
						require.Equal(t, 200, c.Input)
						require.Equal(t, 1000, c.Most)
						require.Equal(t, stream, c.Stream)
						return llmtest.Answer{Output: 400, CacheRead: 50, First: time.Second, Took: 8 * time.Second}
					}})
					start := time.Now()
					response, _ := send(t, s, request(d, 200, 1000, stream))
					require.Equal(t, http.StatusOK, response.StatusCode)
					require.Equal(t, 8*time.Second, time.Since(start))
					st := s.Stats()
					require.Equal(t, want, st.Counted)
					require.Equal(t, llm.Usage{Input: 150, CacheRead: 50, Output: 400}, st.Used)
					require.Equal(t, 1, st.Answered)
				})
			})
		}
	}
}

// Responses counts as Chat Completions does. Of its stream the last event alone has the usage.
func TestOpenAIAnswersByResponsesToo(t *testing.T) {
	for _, stream := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := llmtest.New(llmtest.Config{Dialect: llmtest.OpenAI, Quota: llm.Quota{Tokens: 1500}, Answer: func(c llmtest.Call) llmtest.Answer {
				require.Equal(t, llmtest.Call{Input: 200, Most: 1000, Stream: stream, Responses: true}, c)
				return llmtest.Answer{Output: 400, First: time.Second, Took: 8 * time.Second}
			}})
			r := func() *http.Request {
				return llmtest.NewRequest(t.Context(), llmtest.OpenAI, llmtest.Call{Input: 200, Most: 1000, Stream: stream, Responses: true})
			}
			response, text := send(t, s, r())
			require.Equal(t, http.StatusOK, response.StatusCode)
			require.Equal(t, 1000, s.Stats().Counted.Tokens)
			require.Contains(t, text, strings.Repeat("word", 400), "the whole text")
			require.Equal(t, 1, strings.Count(text, `"output_tokens":400`))
			if stream {
				events := strings.Split(strings.TrimSuffix(text, "\n\n"), "\n\n")
				require.Len(t, events, 16) // 8 pieces
				require.Contains(t, events[0], "event: response.created\n")
				require.Contains(t, events[15], "event: response.completed\n")
				require.Contains(t, events[15], `"sequence_number":15`)
				require.Contains(t, events[15], `"output_tokens":400`)
			}
			response, text = send(t, s, r())
			require.Equal(t, http.StatusTooManyRequests, response.StatusCode)
			require.Contains(t, text, `"code":"rate_limit_exceeded"`)
		})
	}
}

// A bucket of a minute's quota drains evenly. A call that does not fit is refused until it does, and
// told when that is, where the provider says so.
func TestACallThatDoesNotFitIsRefused(t *testing.T) {
	for i, tt := range []struct {
		input, most int // 2,000 when the call begins
		fit         int // calls at once, of 6,000 tokens a minute
		wait, said  time.Duration
		provider    llm.Provider
	}{
		{500, 2000, 3, 20 * time.Second, 20 * time.Second, llm.OpenAI},
		{2000, 1, 2, 20 * time.Millisecond, time.Second, llm.Anthropic}, // 2,001 with the output; whole seconds
		{2000, 1, 3, 20 * time.Second, 20 * time.Second, llm.Gemini},
		{500, 1500, 4, 10 * time.Second, 0, llm.Bedrock}, // 1,250 when the call has ended
	} {
		d := dialects[i]
		t.Run(string(d), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := llmtest.New(llmtest.Config{Dialect: d, Quota: llm.Quota{Tokens: 6000}})
				status := func() int {
					response, _ := send(t, s, request(d, tt.input, tt.most, false))
					return response.StatusCode
				}
				for range tt.fit {
					require.Equal(t, http.StatusOK, status())
				}
				refusal, text := send(t, s, request(d, tt.input, tt.most, true))
				require.Equal(t, http.StatusTooManyRequests, refusal.StatusCode)
				refusal.Body = io.NopCloser(strings.NewReader(text))
				require.Equal(t, tt.said, tt.provider.HoldFor(refusal))
				time.Sleep(tt.wait - time.Nanosecond)
				require.Equal(t, http.StatusTooManyRequests, status())
				time.Sleep(time.Nanosecond)
				require.Equal(t, http.StatusOK, status())
				require.Equal(t, 2, s.Stats().Refused)

				tooLarge, text := send(t, s, request(d, 7000, 7000, false))
				require.Equal(t, http.StatusTooManyRequests, tooLarge.StatusCode)
				tooLarge.Body = io.NopCloser(strings.NewReader(text))
				require.Empty(t, tooLarge.Header.Get("Retry-After"), "coming back does not help")
			})
		})
	}
}

// OpenAI counts refused requests too, so who sends again at once is refused for longer.
func TestRefusedRequestsCountAtOpenAI(t *testing.T) {
	for i, want := range []int{5, 1, 2, 1} {
		d := dialects[i]
		synctest.Test(t, func(t *testing.T) {
			s := llmtest.New(llmtest.Config{Dialect: d, Quota: llm.Quota{Requests: 10, Tokens: 200, Input: 200}})
			for range 5 {
				send(t, s, request(d, 100, 100, false))
			}
			require.Equal(t, want, s.Stats().Counted.Requests)
		})
	}
}

// A stream that breaks has what was produced until then, and no usage; Bedrock settles it.
func TestAStreamThatBreaks(t *testing.T) {
	for i, want := range []llm.Quota{
		{Requests: 1, Tokens: 1000}, {Requests: 1, Tokens: 400, Input: 200, Output: 200}, {Requests: 1, Tokens: 200, Input: 200}, {Requests: 1, Tokens: 400},
	} {
		d := dialects[i]
		synctest.Test(t, func(t *testing.T) {
			s := llmtest.New(llmtest.Config{
				Dialect: d, Quota: llm.Quota{Requests: 60, Tokens: 60_000, Input: 60_000, Output: 60_000},
				Answer: func(llmtest.Call) llmtest.Answer { return llmtest.Answer{Output: 400, Breaks: true} },
			})
			response, err := s.RoundTrip(request(d, 200, 1000, true))
			require.NoError(t, err)
			text, err := io.ReadAll(response.Body)
			require.Equal(t, io.ErrUnexpectedEOF, err)
			require.Contains(t, string(text), "wordword")
			require.NoError(t, response.Body.Close())
			synctest.Wait()
			require.Equal(t, 1, s.Stats().Abandoned)
			require.Equal(t, want, s.Stats().Counted)

			_, err = s.RoundTrip(request(d, 200, 1000, false))
			require.Error(t, err, "an answer that is no stream breaks before its header")
		})
	}
}

// A client that goes, or closes the body, ends the answer.
func TestAClientThatGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := llmtest.New(llmtest.Config{Dialect: llmtest.Anthropic, Answer: func(llmtest.Call) llmtest.Answer {
			return llmtest.Answer{First: time.Second, Took: 8 * time.Second}
		}})
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		_, err := s.RoundTrip(request(llmtest.Anthropic, 200, 800, true).WithContext(ctx))
		require.Equal(t, context.DeadlineExceeded, err)
		require.Equal(t, 500*time.Millisecond, time.Since(start))
		synctest.Wait()
		require.Equal(t, llmtest.Stats{Abandoned: 1, Used: llm.Usage{Input: 200}, Counted: llm.Quota{Requests: 1, Tokens: 200, Input: 200}}, s.Stats())

		response, err := s.RoundTrip(request(llmtest.Anthropic, 200, 800, true))
		require.NoError(t, err)
		time.Sleep(3500 * time.Millisecond) // 1 s of 7 for each piece of 8, the first at once
		require.NoError(t, response.Body.Close())
		synctest.Wait()
		require.Equal(t, 2, s.Stats().Abandoned)
	})
}

func TestErrorsInPlaceOfAnswers(t *testing.T) {
	for _, d := range dialects {
		synctest.Test(t, func(t *testing.T) {
			s := llmtest.New(llmtest.Config{Dialect: d, Quota: llm.Quota{Requests: 1}, Answer: func(c llmtest.Call) llmtest.Answer {
				return llmtest.Answer{Status: []int{529, 503, 0}[c.N]}
			}})
			for _, want := range []int{529, 503, 200, 429} {
				response, _ := send(t, s, request(d, 100, 100, false))
				require.Equal(t, want, response.StatusCode, "an error counts towards no limit")
			}
			unknown := request(d, 100, 100, false)
			unknown.URL.Path = "/v1/else"
			response, _ := send(t, s, unknown)
			require.Equal(t, http.StatusBadRequest, response.StatusCode)
			require.Equal(t, 3, s.Stats().Failed)
		})
	}
}

// On a real server the same happens, flushed piece by piece.
func TestAServerOnARealConnection(t *testing.T) {
	for _, d := range dialects {
		for _, breaks := range []bool{false, true} {
			s := llmtest.New(llmtest.Config{Dialect: d, Answer: func(llmtest.Call) llmtest.Answer { return llmtest.Answer{Output: 80, Breaks: breaks} }})
			server := httptest.NewServer(s)
			r := request(d, 100, 100, true)
			r.URL.Host = strings.TrimPrefix(server.URL, "http://")
			response, err := server.Client().Do(r)
			require.NoError(t, err)
			text, err := io.ReadAll(response.Body)
			require.NoError(t, response.Body.Close())
			server.Close()
			if breaks {
				require.Equal(t, io.ErrUnexpectedEOF, err)
				continue
			}
			require.NoError(t, err)
			require.Equal(t, 80, strings.Count(string(text), "word"))
		}
	}
}

func TestWhatIsNoDialect(t *testing.T) {
	require.Panics(t, func() { llmtest.New(llmtest.Config{}) })
	require.Panics(t, func() { request("Mystery", 1, 1, false) })
}

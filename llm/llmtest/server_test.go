package llmtest_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/llm"
	"example.com/leakybucket/llm/llmtest"
)

var dialects = []llmtest.Dialect{llmtest.OpenAI, llmtest.Anthropic, llmtest.Gemini, llmtest.Bedrock, llmtest.Compatible}

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

// What each provider counts, and when. Its answer has the whole text.
func TestWhatACallTakesOfTheLimits(t *testing.T) {
	q := llm.Quota{Requests: 60, Tokens: 60_000, Input: 60_000, Output: 60_000}
	for _, tt := range []struct {
		llmtest.Dialect
		responses bool
		want      llm.Quota
		end       string // of a stream
	}{
		{llmtest.OpenAI, false, llm.Quota{Requests: 1, Tokens: 1000}, "data: [DONE]\n\n"}, // max(1000, 200)
		{llmtest.OpenAI, true, llm.Quota{Requests: 1, Tokens: 1000}, `"sequence_number":15,"type":"response.completed"}` + "\n\n"},
		{llmtest.Anthropic, false, llm.Quota{Requests: 1, Tokens: 550, Input: 150, Output: 400}, `{"type":"message_stop"}` + "\n\n"}, // without the cached input, and with what was produced
		{llmtest.Gemini, false, llm.Quota{Requests: 1, Tokens: 200, Input: 200}, "\r\n\r\n"},                                         // input alone
		{llmtest.Bedrock, false, llm.Quota{Requests: 1, Tokens: 550}, ""},                                                            // settled
		{llmtest.Compatible, false, llm.Quota{Requests: 1, Tokens: 600, Input: 200, Output: 400}, "data: [DONE]\n\n"},                // what was used
	} {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s responses=%v stream=%v", tt.Dialect, tt.responses, stream), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					asked := llmtest.Call{Input: 200, Most: 1000, Stream: stream, Responses: tt.responses}
					s := llmtest.New(llmtest.Config{Dialect: tt.Dialect, Quota: q, Answer: func(c llmtest.Call) llmtest.Answer {
						require.Equal(t, asked, llmtest.Call{Input: c.Input, Most: c.Most, Stream: c.Stream, Responses: c.Responses})
						return llmtest.Answer{Output: 400, CacheRead: 50, First: time.Second, Took: 8 * time.Second}
					}})
					start := time.Now()
					response, text := send(t, s, llmtest.NewRequest(t.Context(), tt.Dialect, asked))
					require.Equal(t, http.StatusOK, response.StatusCode)
					require.Equal(t, 8*time.Second, time.Since(start))
					require.GreaterOrEqual(t, strings.Count(text, "word"), 400)
					if !stream || tt.responses {
						require.Contains(t, text, strings.Repeat("word", 400), "in one piece")
					}
					if stream {
						require.True(t, strings.HasSuffix(text, tt.end), text)
					}
					st := s.Stats()
					require.Equal(t, tt.want, st.Counted)
					require.Equal(t, llm.Usage{Input: 150, CacheRead: 50, Output: 400}, st.Used)
					require.Equal(t, 1, st.Answered)
				})
			})
		}
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
		{2000, 1, 2, 20 * time.Millisecond, time.Second, llm.Anthropic},        // 2,001 with the output; whole seconds
		{2000, 1, 3, time.Minute, time.Minute, llm.Gemini},                     // a rolling minute
		{500, 1500, 4, 10 * time.Second, time.Second, llm.Bedrock},             // 1,250 when the call has ended; it does not say
		{2000, 1, 2, 20 * time.Millisecond, 20 * time.Millisecond, llm.OpenAI}, // 2,001 when the call has ended
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

// Where a minute lasts 6 s, as much fits within those, in a bucket and in a rolling minute.
func TestAMinuteMayBeShorter(t *testing.T) {
	for d, wait := range map[llmtest.Dialect]time.Duration{llmtest.Compatible: 600 * time.Millisecond, llmtest.Gemini: 6 * time.Second} {
		t.Run(string(d), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := llmtest.New(llmtest.Config{Dialect: d, Quota: llm.Quota{Requests: 10}, Minute: 6 * time.Second})
				status := func() int {
					response, _ := send(t, s, request(d, 100, 1, false))
					return response.StatusCode
				}
				for range 10 {
					require.Equal(t, http.StatusOK, status())
				}
				time.Sleep(wait - time.Nanosecond)
				require.Equal(t, http.StatusTooManyRequests, status())
				time.Sleep(time.Nanosecond)
				require.Equal(t, http.StatusOK, status())
			})
		})
	}
}

// OpenAI counts refused requests too, so who sends again at once is refused for longer.
func TestRefusedRequestsCountAtOpenAI(t *testing.T) {
	for i, want := range []int{5, 1, 2, 1, 1} {
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
		{Requests: 1, Tokens: 400, Input: 200, Output: 200},
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

func TestWhatIsNoDialect(t *testing.T) {
	require.Panics(t, func() { llmtest.New(llmtest.Config{}) })
	require.Panics(t, func() { request("Mystery", 1, 1, false) })
}

// Gemini counts each rolling minute, and not a bucket: what was used comes back after a minute, all at once.
func TestGeminiCountsARollingMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := llmtest.New(llmtest.Config{Dialect: llmtest.Gemini, Quota: llm.Quota{Requests: 2}})
		status := func() int {
			response, _ := send(t, s, request(llmtest.Gemini, 100, 100, false))
			return response.StatusCode
		}
		require.Equal(t, 200, status())
		time.Sleep(50 * time.Second)
		require.Equal(t, []int{200, 429}, []int{status(), status()})
		time.Sleep(10*time.Second - 1)
		require.Equal(t, 429, status())
		time.Sleep(time.Nanosecond)
		require.Equal(t, []int{200, 429}, []int{status(), status()})
		time.Sleep(50 * time.Second)
		require.Equal(t, []int{200, 429}, []int{status(), status()})
	})
}

// What a cache has does not count at Anthropic, from the beginning of a call on.
func TestCachedInputTakesNoRoomAtAnthropic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := llmtest.New(llmtest.Config{Dialect: llmtest.Anthropic, Quota: llm.Quota{Input: 1000},
			Answer: func(llmtest.Call) llmtest.Answer { return llmtest.Answer{Took: time.Minute} },
			Cached: func(c llmtest.Call) int { return c.Input * 9 / 10 },
		})
		for range 2 {
			response, err := s.RoundTrip(request(llmtest.Anthropic, 5000, 100, true))
			require.NoError(t, err)
			require.Equal(t, 200, response.StatusCode)
			defer response.Body.Close()
		}
		require.Equal(t, 1000, s.Stats().Counted.Input)
	})
}

// Some of Bedrock's models count a token of output several times, when a call ends.
func TestATokenOfOutputMayCountForSeveralAtBedrock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := llmtest.New(llmtest.Config{Dialect: llmtest.Bedrock, OutputFactor: 5, Quota: llm.Quota{Tokens: 10_000}, Answer: func(llmtest.Call) llmtest.Answer {
			return llmtest.Answer{Output: 400}
		}})
		send(t, s, request(llmtest.Bedrock, 200, 1000, false))
		require.Equal(t, 200+5*400, s.Stats().Counted.Tokens)
	})
}

package llm_test

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/llm"
	"example.com/leakybucket/llm/llmtest"
)

var errBroken = errors.New("broken")

// inPieces returns a text in pieces of so many bytes; 0: as many as are asked for.
type inPieces struct {
	io.Reader
	size int
}

func (p inPieces) Read(b []byte) (int, error) {
	if p.size > 0 {
		b = b[:min(len(b), p.size)]
	}
	return p.Reader.Read(b)
}

// How the reading of a body ends.
type ending int

const (
	toTheEnd ending = iota
	broken          // by an error
	closed          // before the end of the body was seen
)

// metered reads a body along, and returns what was read and what was found.
func metered(t testing.TB, p llm.Provider, contentType, encoding, text string, size int, end ending) (read string, u llm.Usage, ok bool) {
	return meteredWithin(t, 0, p, contentType, encoding, text, size, end)
}

// meteredWithin is metered, and looks at so many bytes of what a compressed body holds; 0: at as many as of any.
func meteredWithin(t testing.TB, room int, p llm.Provider, contentType, encoding, text string, size int, end ending) (read string, u llm.Usage, ok bool) {
	body := io.Reader(inPieces{strings.NewReader(text), size})
	if end == broken {
		body = io.MultiReader(body, iotest.ErrReader(errBroken))
	}
	h := http.Header{}
	if contentType != "" {
		h.Set("Content-Type", contentType)
	}
	if encoding != "" {
		h.Set("Content-Encoding", encoding)
	}
	r := &http.Response{StatusCode: http.StatusOK, Header: h, Body: io.NopCloser(body)}
	result := llm.ReadAlong(r, p.Usage, room)
	var got bytes.Buffer
	var err error
	if end == closed {
		_, err = io.CopyN(&got, r.Body, int64(len(text)))
	} else {
		_, err = got.ReadFrom(r.Body)
	}
	if end == broken {
		require.Equal(t, errBroken, err)
	} else {
		require.NoError(t, err)
	}
	require.NoError(t, r.Body.Close())
	require.NoError(t, r.Body.Close())
	u, ok = result()
	return got.String(), u, ok
}

const (
	sse    = "text/event-stream"
	amazon = "application/vnd.amazon.eventstream"

	chunk    = `data: {"choices":[{"delta":{"content":"a"}}],"usage":null}` + "\n\n"
	last     = `data: {"choices":[],"usage":{"prompt_tokens":19,"completion_tokens":10}}` + "\n\n"
	done     = "data: [DONE]\n\n"
	started  = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":25,\"output_tokens\":1}}}\n\n"
	delta    = "event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":15}}\n\n"
	stopped  = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
	overload = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n"
)

// untyped leaves the type out of the data of events.
func untyped(events string) string {
	for _, kind := range []string{"message_start", "message_delta", "message_stop"} {
		events = strings.NewReplacer(`{"type":"`+kind+`",`, "{", `{"type":"`+kind+`"}`, "{}").Replace(events)
	}
	return events
}

func geminiChunk(output int) string {
	return fmt.Sprintf(`{"candidates":[{"content":{"parts":[{"text":"[{\"\\"}]}}],"usageMetadata":{"promptTokenCount":8,"candidatesTokenCount":%d}}`, output)
}

func message(event, payload string) string { return string(llmtest.Message(event, []byte(payload))) }

// behind returns an event whose type stands behind other headers, as they are in a message.
func behind(headers, event, payload string) string {
	plain := llmtest.Message(event, []byte(payload))
	length := binary.BigEndian.Uint32(plain[4:]) + uint32(len(headers))
	message := binary.BigEndian.AppendUint32(nil, uint32(len(plain)+len(headers)))
	message = binary.BigEndian.AppendUint32(message, length)
	message = binary.BigEndian.AppendUint32(message, crc32.ChecksumIEEE(message))
	message = append(append(message, headers...), plain[12:len(plain)-4]...)
	return string(binary.BigEndian.AppendUint32(message, crc32.ChecksumIEEE(message)))
}

// The type of an event stands behind headers of any type, and nobody knows which a provider will add.
func TestTheTypeOfAnEventIsFoundBehindHeadersOfEachType(t *testing.T) {
	const payload = `{"usage":{"inputTokens":3,"outputTokens":4}}`
	values := []string{"", "", "1", "12", "1234", "12345678", "\x00\x03abc", "\x00\x03abc", "12345678", "1234567890123456"}
	all := ""
	for kind, value := range values {
		header := "\x04name" + string(rune(kind)) + value
		all += header
		for name, headers := range map[string]string{"one": header, "all": all, "as long as its name": "\x0b:event-type" + string(rune(kind%7)) + values[kind%7]} {
			// Only of an event that is known to be the last is anything known when the caller closes it.
			_, u, ok := metered(t, llm.Bedrock, amazon, "", behind(headers, "metadata", payload), 0, closed)
			require.True(t, ok, "%s: %d", name, kind)
			require.Equal(t, llm.Usage{Input: 3, Output: 4}, u)
		}
	}
	for name, headers := range map[string]string{
		"a type that is none":       "\x04name\x0a",
		"a value that is cut off":   "\x04name\x06\xff\xff",
		"a name that is cut off":    "\xff",
		"lengths that are cut off":  "",
		"a type of another message": "\x0d:message-type\x07\x00\x08metadata",
	} {
		event := "metadata"
		if name == "lengths that are cut off" || name == "a type of another message" {
			event = "chunk"
		}
		_, _, ok := metered(t, llm.Bedrock, amazon, "", behind(headers, event, payload), 0, closed)
		require.False(t, ok, name)
	}
}

func TestUsageOfWholeResponses(t *testing.T) {
	type usage = llm.Usage
	unknown := usage{Input: -1}
	long := strings.Repeat("x", llm.Kept)
	for _, tt := range []struct {
		name        string
		p           llm.Provider
		contentType string
		text        string
		end         ending
		want        llm.Usage
	}{
		{"a stream", llm.OpenAI, sse, chunk + last + done, toTheEnd, usage{Input: 19, Output: 10}},
		{"with a charset", llm.OpenAI, "text/event-stream; charset=utf-8", chunk + last + done, toTheEnd, usage{Input: 19, Output: 10}},
		{"without the end", llm.OpenAI, sse, chunk + last, toTheEnd, usage{Input: 19, Output: 10}},
		{"without the empty line at the end", llm.OpenAI, sse, strings.TrimSpace(chunk + last), toTheEnd, usage{Input: 19, Output: 10}},
		{"closed behind the last event", llm.OpenAI, sse, chunk + last + done, closed, usage{Input: 19, Output: 10}},
		{"closed before it", llm.OpenAI, sse, chunk + last, closed, unknown},
		{"broken behind the last event", llm.OpenAI, sse, chunk + last + done, broken, usage{Input: 19, Output: 10}},
		{"broken before it", llm.OpenAI, sse, chunk + last, broken, unknown},
		{"usage was not asked for", llm.OpenAI, sse, chunk + done, toTheEnd, unknown},
		{"CRLF", llm.OpenAI, sse, strings.ReplaceAll(chunk+last+done, "\n", "\r\n"), toTheEnd, usage{Input: 19, Output: 10}},
		{"CR", llm.OpenAI, sse, strings.ReplaceAll(chunk+last+done, "\n", "\r"), toTheEnd, usage{Input: 19, Output: 10}},
		{"a byte order mark", llm.OpenAI, sse, "\ufeff" + last, toTheEnd, usage{Input: 19, Output: 10}},
		{"comments and other fields", llm.OpenAI, sse, ": hello\n\nid: 7\nretry: 5\n" + last + ":\n", toTheEnd, usage{Input: 19, Output: 10}},
		{"data in several lines", llm.OpenAI, sse, "data: {\"usage\":{\"prompt_tokens\":19,\ndata\ndata:\"completion_tokens\":10}}\n\n", toTheEnd, usage{Input: 19, Output: 10}},
		{"the last counts", llm.OpenAI, sse, last + strings.Replace(last, "10", "11", 1), toTheEnd, usage{Input: 19, Output: 11}},
		{"an event that is too long", llm.OpenAI, sse, "data: " + long + "\n\n" + last, toTheEnd, usage{Input: 19, Output: 10}},
		{"an event of lines that is too long", llm.OpenAI, sse, "data: " + long[:llm.Kept/2] + "\ndata: " + long[:llm.Kept/2] + "\n" + last, toTheEnd, unknown},
		{"usage in an event that is too long", llm.OpenAI, sse, `data: {"x":"` + long + `","usage":{"prompt_tokens":19,"completion_tokens":10}}` + "\n\n" + done, toTheEnd, unknown},
		{"a comment that is too long", llm.OpenAI, sse, ":" + long + "\n\n" + last, toTheEnd, usage{Input: 19, Output: 10}},
		{"an output of 0: a content filter (auto_ai_router#142)", llm.OpenAI, sse, strings.Replace(last, "10", "0", 1) + done, toTheEnd, usage{Input: 19}},
		{
			"Responses, closed behind the last event", llm.OpenAI, sse,
			"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":3,\"output_tokens\":4}}}\n\n", closed, usage{Input: 3, Output: 4},
		},

		{"Anthropic", llm.Anthropic, sse, started + delta + stopped, toTheEnd, usage{Input: 25, Output: 15}},
		{"Anthropic, two deltas", llm.Anthropic, sse, started + delta + strings.Replace(delta, "15", "16", 1) + stopped, toTheEnd, usage{Input: 25, Output: 16}},
		{"Anthropic, closed behind message_stop", llm.Anthropic, sse, started + delta + stopped, closed, usage{Input: 25, Output: 15}},
		{"Anthropic, an error in the stream", llm.Anthropic, sse, started + overload, toTheEnd, unknown},
		{"Anthropic, closed in the middle", llm.Anthropic, sse, started + delta, closed, unknown},
		{"Anthropic, an output of 0", llm.Anthropic, sse, started + strings.Replace(delta, "15", "0", 1) + stopped, toTheEnd, usage{Input: 25}},
		{"Anthropic, without the delta", llm.Anthropic, sse, started + stopped, toTheEnd, unknown},
		{"Anthropic, the type in event: alone", llm.Anthropic, sse, untyped(started + delta + stopped), toTheEnd, usage{Input: 25, Output: 15}},
		{"Anthropic, the type in event: alone, without the delta", llm.Anthropic, sse, untyped(started + stopped), toTheEnd, unknown},
		{
			"Anthropic, compaction (pydantic-ai#5065)", llm.Anthropic, sse,
			started + `data: {"type":"message_delta","usage":{"input_tokens":23000,"output_tokens":1000,"iterations":[{"type":"compaction","input_tokens":180000,"output_tokens":3500},{"type":"message","input_tokens":23000,"output_tokens":1000}]}}` + "\n\n" + stopped,
			toTheEnd, usage{Input: 203_000, Output: 4500},
		},
		{"Anthropic, without the start", llm.Anthropic, sse, delta + stopped, toTheEnd, unknown},

		{"Gemini", llm.Gemini, sse, "data: " + geminiChunk(1) + "\r\n\r\ndata: " + geminiChunk(2) + "\r\n\r\n", toTheEnd, usage{Input: 8, Output: 2}},
		{"Gemini, an array", llm.Gemini, "application/json; charset=UTF-8", "[" + geminiChunk(1) + "\n,\r\n" + geminiChunk(2) + "\n]", toTheEnd, usage{Input: 8, Output: 2}},
		{"Gemini, an array that was closed at its end", llm.Gemini, "application/json", "[" + geminiChunk(1) + "]", closed, usage{Input: 8, Output: 1}},
		{"Gemini, an array that was closed before", llm.Gemini, "application/json", "[" + geminiChunk(1), closed, unknown},
		{"Gemini, an array that breaks", llm.Gemini, "application/json", "[" + geminiChunk(1), broken, unknown},
		{"Gemini, an element that is too long", llm.Gemini, "application/json", `[{"x":"` + long + `"},` + geminiChunk(2) + "]", toTheEnd, usage{Input: 8, Output: 2}},

		{"Gemini, blocked (janeapp/riffer#309)", llm.Gemini, sse, `data: {"promptFeedback":{"blockReason":"SAFETY"},"usageMetadata":{"promptTokenCount":10,"totalTokenCount":10}}` + "\r\n\r\n", toTheEnd, usage{Input: 10}},
		{"Groq (vercel/ai#1651)", llm.OpenAI, sse, chunk + `data: {"choices":[],"x_groq":{"usage":{"prompt_tokens":12,"completion_tokens":30}}}` + "\n\n" + done, toTheEnd, usage{Input: 12, Output: 30}},
		{"Moonshot (earendil-works/pi#2017)", llm.OpenAI, sse, chunk + `data: {"choices":[{"usage":{"prompt_tokens":12,"completion_tokens":30}}]}` + "\n\n" + done, toTheEnd, usage{Input: 12, Output: 30}},
		{"Ollama's own API", llm.OpenAI, "application/x-ndjson", `{"message":{"content":"a"},"done":false}` + "\n" + `{"done":true,"prompt_eval_count":12,"eval_count":30}` + "\n", toTheEnd, usage{Input: 12, Output: 30}},
		{"JSON", llm.Gemini, "application/json", geminiChunk(3), toTheEnd, usage{Input: 8, Output: 3}},
		{"JSON, closed behind the object", llm.Gemini, "application/json", geminiChunk(3), closed, usage{Input: 8, Output: 3}},
		{"JSON, cut off", llm.Gemini, "application/json", strings.TrimSuffix(geminiChunk(3), "}"), toTheEnd, unknown},
		{"JSON that is too long", llm.OpenAI, "application/json", `{"x":"` + long + `","usage":{"prompt_tokens":19,"completion_tokens":10}}`, toTheEnd, unknown},
		{"embeddings", llm.OpenAI, "application/json", `{"usage":{"prompt_tokens":8,"total_tokens":8}}`, toTheEnd, usage{Input: 8}},
		{"no type", llm.OpenAI, "", `{"usage":{"prompt_tokens":8,"completion_tokens":8}}`, toTheEnd, usage{Input: 8, Output: 8}},
		{"lines of JSON", llm.OpenAI, "application/x-ndjson", "{}\n" + `{"usage":{"prompt_tokens":8,"completion_tokens":8}}` + "\n", toTheEnd, usage{Input: 8, Output: 8}},
		{"no input", llm.OpenAI, "application/json", `{"usage":{"prompt_tokens":0,"completion_tokens":8}}`, toTheEnd, unknown},
		{"nothing", llm.OpenAI, "application/json", "", toTheEnd, unknown},

		{
			"Bedrock", llm.Bedrock, amazon, message("messageStart", "{}") + message("messageStop", "{}") + message("metadata", `{"usage":{"inputTokens":3,"outputTokens":4}}`),
			toTheEnd, usage{Input: 3, Output: 4},
		},
		{"Bedrock, closed behind the last event", llm.Bedrock, amazon, message("metadata", `{"usage":{"inputTokens":3,"outputTokens":4}}`), closed, usage{Input: 3, Output: 4}},
		{"Bedrock, closed before", llm.Bedrock, amazon, message("chunk", `{"usage":{"inputTokens":3,"outputTokens":4}}`), closed, unknown},
		{
			"Bedrock, an event that is too long", llm.Bedrock, amazon, message("x", long) + message("metadata", `{"usage":{"inputTokens":3,"outputTokens":4}}`),
			toTheEnd, usage{Input: 3, Output: 4},
		},
		{
			"Bedrock, usage in an event that is too long", llm.Bedrock, amazon,
			message("metadata", `{"x":"`+long+`","usage":{"inputTokens":3,"outputTokens":4}}`), toTheEnd, unknown,
		},
		{
			"Bedrock, a byte that has changed", llm.Bedrock, amazon,
			strings.Replace(message("x", "{}"), "{}", "{]", 1) + message("metadata", `{"usage":{"inputTokens":3,"outputTokens":4}}`), toTheEnd, unknown,
		},
		{"Bedrock, lengths that have changed", llm.Bedrock, amazon, "\x00\x00\x00\x10\x00\x00\x00\x00\x00\x00\x00\x00" + message("metadata", `{"usage":{"inputTokens":3,"outputTokens":4}}`), toTheEnd, unknown},
	} {
		for _, size := range []int{0, 1, 7} {
			if size > 0 && len(tt.text) >= llm.Kept/2 {
				continue // It takes long.
			}
			for _, encoding := range []string{"", "gzip"} {
				if encoding != "" && len(tt.text) >= llm.Kept/2 {
					continue
				}
				name := fmt.Sprint(tt.name, ", in pieces of ", size, " ", encoding)
				text := tt.text
				if encoding == "gzip" {
					text = zipped(text)
				}
				read, u, ok := metered(t, tt.p, tt.contentType, encoding, text, size, tt.end)
				require.True(t, text == read, name)
				if !ok {
					u = unknown
				}
				require.Equal(t, tt.want, u, name)
			}
		}
	}
}

// An encoding that is unknown passes, and so does what claims to be compressed and is not.
func TestUsageOfWhatCannotBeRead(t *testing.T) {
	body := `{"usage":{"prompt_tokens":8,"completion_tokens":8}}`
	for _, tt := range []struct{ encoding, text string }{
		{"br", body}, {"gzip, gzip", body}, {"gzip", body}, {"gzip", zipped(body)[:40]}, {"gzip", ""}, {"gzip", zipped(body) + "x"},
	} {
		read, _, ok := metered(t, llm.OpenAI, "application/x-ndjson", tt.encoding, tt.text, 0, toTheEnd)
		require.Equal(t, tt.text, read)
		require.False(t, ok, tt.encoding)
	}
	_, u, ok := metered(t, llm.OpenAI, "application/json", "Identity", body, 0, toTheEnd)
	require.True(t, ok)
	require.Equal(t, llm.Usage{Input: 8, Output: 8}, u)
}

// Compressed responses are read in each coding, in whatever pieces they come, also to the last event of a stream that is closed behind
// it. Refusals are, too.
func TestUsageOfCompressedResponses(t *testing.T) {
	for coding, pack := range codings {
		for _, size := range []int{0, 1, 7} {
			text := pack(chunk + last + done)
			read, u, ok := metered(t, llm.OpenAI, sse, coding, text, size, toTheEnd)
			require.True(t, text == read)
			require.True(t, ok, "%q, in pieces of %d", coding, size)
			require.Equal(t, llm.Usage{Input: 19, Output: 10}, u)
			_, _, ok = metered(t, llm.OpenAI, sse, coding, text[:len(text)/2], size, toTheEnd)
			require.False(t, ok, "%q, cut off", coding)
			_, _, _ = metered(t, llm.OpenAI, sse, coding, text[:len(text)/2], size, closed) // Nothing is left behind.
		}
		h := fields("Content-Encoding", coding)
		body := pack(`{"error":{"message":"Please try again in 14s."}}`)
		r := &http.Response{StatusCode: 429, Header: h, Body: io.NopCloser(strings.NewReader(body))}
		require.Equal(t, 14*time.Second, llm.OpenAI.HoldFor(r), coding)
	}
}

// A response without a body need not be closed, and one that claims to be compressed leaves no coroutine behind.
func TestACompressedResponseWithoutABodyLeavesNothingBehind(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 100 {
		r := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Encoding": {"gzip"}}, Body: http.NoBody}
		_, ok := llm.ReadAlong(r, llm.OpenAI.Usage, 0)()
		require.False(t, ok)
	}
	require.Less(t, runtime.NumGoroutine(), before+100)
}

// Of a body that is decompressed to more than 16 MiB no more is looked at, and what it says at its end is unknown. The
// test allows less, as the race detector takes seconds for 16 MiB.
func TestACompressedBodyThatHoldsTooMuch(t *testing.T) {
	const room = 100_000
	body := `{"usage":{"prompt_tokens":8,"completion_tokens":8}}`
	for length, known := range map[int]bool{room: true, room + 1: false} {
		text := zipped(strings.Repeat(" ", length-len(body)) + body)
		read, u, ok := meteredWithin(t, room, llm.OpenAI, "application/json", "gzip", text, 0, toTheEnd)
		require.True(t, text == read, "the bytes pass")
		require.Equal(t, known, ok)
		require.Equal(t, known, u == llm.Usage{Input: 8, Output: 8})
	}
}

// What a stream of compressed events has told counts, although its checksum has not come.
func TestACompressedStreamThatIsClosedBehindItsLastEvent(t *testing.T) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte(last + done)) // A Buffer never fails.
	require.NoError(t, z.Flush())
	_, u, ok := metered(t, llm.OpenAI, sse, "gzip", b.String(), 0, closed)
	require.True(t, ok)
	require.Equal(t, llm.Usage{Input: 19, Output: 10}, u)
}

// A usage of a Provider's own that has a negative number is none.
func TestANegativeUsageIsNone(t *testing.T) {
	p := llm.Provider{Usage: func([]byte) (llm.Usage, bool) { return llm.Usage{Input: 1, Output: -1}, true }}
	_, _, ok := metered(t, p, "application/json", "", "{}", 0, toTheEnd)
	require.False(t, ok)
}

// The bytes of a body pass as they are, and so does its end, whatever they are and however they come.
// In which pieces they come does not matter to what is found.
func FuzzStreamsAreReadWhole(f *testing.F) {
	for _, text := range []string{
		chunk + last + done, started + delta + stopped, "\ufeffdata\r\r\n:\r", "[" + geminiChunk(1) + "," + geminiChunk(2) + "]", `{"a":"\"}`,
		message("metadata", `{"usage":{"inputTokens":3,"outputTokens":4}}`), zipped(last), "\x1f\x8b",
	} {
		f.Add([]byte(text), uint8(3), uint8(0))
		f.Add([]byte(text), uint8(1), uint8(1))
	}
	f.Fuzz(func(t *testing.T, text []byte, size, end uint8) {
		how := ending(end % 3)
		for _, contentType := range []string{sse, amazon, "application/json", "text/plain"} {
			for _, encoding := range []string{"", "gzip"} {
				for name, p := range providers {
					_, wanted, known := metered(t, p, contentType, encoding, string(text), 0, how)
					read, u, ok := metered(t, p, contentType, encoding, string(text), int(size), how)
					require.Equal(t, string(text), read)
					require.Equal(t, known, ok, name)
					require.Equal(t, wanted, u, name)
					require.True(t, u.Input >= 0 && u.Output >= 0 && u.CacheRead >= 0 && u.CacheWrite >= 0)
				}
			}
		}
	})
}

package llm_test

import (
	"bytes"
	"compress/flate"
	"compress/zlib"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/llm"
)

// file returns a file of so many bytes in base64, with its beginning.
func file(beginning string, length int) string {
	random := rand.NewChaCha8([32]byte{1})
	b := make([]byte, length)
	_, _ = random.Read(b)
	copy(b, beginning)
	return base64.StdEncoding.EncodeToString(b)
}

func be32(n int) string { return string(binary.BigEndian.AppendUint32(nil, uint32(n))) }
func le16(n int) string { return string(binary.LittleEndian.AppendUint16(nil, uint16(n))) }

func png(width, height int) string {
	return "\x89PNG\r\n\x1a\n\x00\x00\x00\x0dIHDR" + be32(width) + be32(height) + "\x08\x02"
}

func jpeg(width, height int) string {
	size := string(binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, uint16(height)), uint16(width)))
	return "\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00\xff\xdb\x00\x43" + strings.Repeat("\x01", 65) + "\xff\xc2\x00\x11\x08" + size + "\x03"
}

func webp(chunk, rest string) string {
	return "RIFF\x00\x00\x00\x00WEBP" + chunk + "\x00\x00\x00\x00" + rest
}

func wav(bytesOfSecond int) string {
	return "RIFF\x00\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00" + le16(16_000) + "\x00\x00" + le16(bytesOfSecond) + "\x00\x00\x02\x00\x10\x00data"
}

const (
	visionOfOpenAI    = "platform.openai.com/docs/guides/images-vision, 2026-11"
	visionOfAnthropic = "docs.claude.com/en/docs/build-with-claude/vision, 2026-11"
	visionOfGemini    = "ai.google.dev/gemini-api/docs/image-understanding, 2026-11"
)

// A picture takes what its size says, whatever its bytes.
func TestAPictureIsEstimatedByItsSize(t *testing.T) {
	const length = 360_000 // 480 kB in base64, of BerriAI/litellm#32865: some 1,000 tokens, and not 120,000
	forms := map[string]string{
		"OpenAI":    `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,%s"}}]}]}`,
		"Anthropic": `{"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"%s"}}]}]}`,
		"Gemini":    `{"contents":[{"parts":[{"inlineData":{"mimeType":"image/png","data":"%s"}}]}]}`,
		"Bedrock":   `{"messages":[{"role":"user","content":[{"image":{"format":"png","source":{"bytes":"%s"}}}]}]}`,
	}
	for _, tt := range []struct {
		name, source, provider, beginning string
		want                              int
	}{
		{"PNG", visionOfOpenAI, "OpenAI", png(1024, 1024), 1024},
		{"PNG, small", visionOfOpenAI, "OpenAI", png(33, 31), 2},
		{"PNG, large", visionOfOpenAI, "OpenAI", png(4000, 3000), 1536},
		{"JPEG", visionOfOpenAI, "OpenAI", jpeg(640, 480), 300},
		{"GIF", visionOfOpenAI, "OpenAI", "GIF89a" + le16(64) + le16(32), 2},
		{"WebP, lossy", visionOfOpenAI, "OpenAI", webp("VP8 ", "\x00\x00\x00\x9d\x01\x2a"+le16(64)+le16(32)), 2},
		{"WebP, lossless", visionOfOpenAI, "OpenAI", webp("VP8L", "\x2f"+string(binary.LittleEndian.AppendUint32(nil, 63|31<<14))), 2},
		{"WebP, extended", visionOfOpenAI, "OpenAI", webp("VP8X", "\x10\x00\x00\x00"+le16(63)+"\x00"+le16(31)+"\x00"), 2},
		{"a size that is not known", visionOfOpenAI, "OpenAI", "?", 1536},
		{"a JPEG with a long head", visionOfOpenAI, "OpenAI", "\xff\xd8\xff\xe1\xff\xff", 1536},
		{"a size of 0", ours, "OpenAI", png(0, 0), 1536},
		{"the greatest size, of 32 bits", ours, "OpenAI", png(-1, -1), 1536},
		{"PNG", visionOfAnthropic, "Anthropic", png(1000, 1000), 1334},
		{"PNG, small", visionOfAnthropic, "Anthropic", png(200, 200), 54},
		{"PNG, large", visionOfAnthropic, "Anthropic", png(4000, 3000), 1600},
		{"PNG, long", visionOfAnthropic, "Anthropic", png(3136, 500), 523},
		{"a size that is not known", visionOfAnthropic, "Anthropic", "\xff\xd8\xff\xe1\xff\xff", 1600},
		{"PNG", visionOfGemini, "Gemini", png(960, 540), 6 * 258},
		{"PNG, small", visionOfGemini, "Gemini", png(384, 384), 258},
		{"a picture that is a line", ours, "Gemini", png(65_535, 1), 16 * 258},
		{"a size that is not known", visionOfGemini, "Gemini", "\xff\xd8\xff\xe1\xff\xff", 6 * 258},
		{"PNG", visionOfAnthropic, "Bedrock", png(1000, 1000), 1334},
	} {
		form := forms[tt.provider]
		u := estimated(t, providers[tt.provider], fmt.Sprintf(form, file(tt.beginning, length)))
		around := len(strings.Replace(form, "data:image/png;base64,", "", 1)) - len("%s")
		require.Equal(t, tt.want+(around+3)/4, u.Input, "%s, %s (%s)", tt.provider, tt.name, tt.source)
	}
}

// estimated returns the estimate of a call with a body.
func estimated(t testing.TB, p llm.Provider, body string) llm.Usage {
	r, err := http.NewRequest(http.MethodPost, "http://api/", strings.NewReader(body))
	require.NoError(t, err)
	u, err := p.Estimate(r)
	require.NoError(t, err)
	return u
}

// Pictures, documents and sound take less than 5,000 tokens a megabyte, wherever an API has them, however they are written, and
// also in the results of tools.
func TestAMegabyteThatIsNoText(t *testing.T) {
	const length = 3 << 18 // a mebibyte in base64
	picture, document, sound := file(jpeg(1600, 1200), length), file("%PDF-1.7\n", length), file(wav(32_000), length)
	compressed, video, raw := file("ID3\x04", length), file("\x00\x00\x00\x18ftypmp42", length), file("\x01\x00\x02", length)
	urlSafe := strings.NewReplacer("+", "-", "/", "_").Replace(picture)
	escaped := strings.ReplaceAll(picture, "/", `\/`)
	lines := ""
	for i := 0; i < len(picture); i += 76 {
		lines += picture[i:min(i+76, len(picture))] + `\n`
	}
	names := llm.HolderNames()
	for _, tt := range []struct {
		name string
		p    llm.Provider
		body string
	}{
		{"OpenAI, Chat Completions, a picture", llm.OpenAI, `{"messages":[{"content":[{"type":"image_url","image_url":{"url":"data:image/jpeg;base64,` + picture + `","detail":"high"}}]}]}`},
		{"OpenAI, with escapes (laravel/ai)", llm.OpenAI, `{"messages":[{"content":[{"type":"image_url","image_url":{"url":"data:image\/jpeg;base64,` + escaped + `"}}]}]}`},
		{"Anthropic, with + as .NET writes it", llm.Anthropic, `{"messages":[{"content":[{"source":{"data":"` + strings.ReplaceAll(picture, "+", `\u002B`) + `"}}]}]}`},
		{"Anthropic, in lines", llm.Anthropic, `{"messages":[{"content":[{"source":{"data":"` + lines + `"}}]}]}`},
		{"OpenAI, Responses, a picture (OmniRoute#8368)", llm.OpenAI, `{"input":[{"content":[{"type":"input_image","image_url":"data:image/jpeg;base64,` + picture + `"}]}]}`},
		{"OpenAI, the result of a tool", llm.OpenAI, `{"input":[{"type":"function_call_output","output":[{"type":"input_image","image_url":"data:image/jpeg;base64,` + picture + `"}]}]}`},
		{"OpenAI, a computer's screen", llm.OpenAI, `{"input":[{"type":"computer_call_output","output":{"type":"computer_screenshot","image_url":"data:image/png;base64,` + picture + `"}}]}`},
		{"OpenAI, a document", llm.OpenAI, `{"input":[{"content":[{"type":"input_file","filename":"a.pdf","file_data":"data:application/pdf;base64,` + document + `"}]}]}`},
		{"OpenAI, a document without a type", llm.OpenAI, `{"messages":[{"content":[{"type":"file","file":{"file_data":"` + document + `"}}]}]}`},
		{"OpenAI, a document of another type", llm.OpenAI, `{"input":[{"content":[{"file_data":"data:application/vnd.ms-excel;base64,` + raw + `"}]}]}`},
		{"OpenAI, sound", llm.OpenAI, `{"messages":[{"content":[{"type":"input_audio","input_audio":{"data":"` + sound + `","format":"wav"}}]}]}`},
		{"OpenAI, compressed sound", llm.OpenAI, `{"messages":[{"content":[{"type":"input_audio","input_audio":{"data":"` + compressed + `","format":"mp3"}}]}]}`},
		{"OpenAI, samples", llm.OpenAI, `{"messages":[{"content":[{"type":"input_audio","input_audio":{"format":"pcm16","data":"` + raw + `"}}]}]}`},
		{"Anthropic, a picture", llm.Anthropic, `{"messages":[{"content":[{"type":"image","source":{"type":"base64","media_type":"image/jpeg","data":"` + picture + `"}}]}]}`},
		{"Anthropic, the result of a tool", llm.Anthropic, `{"messages":[{"content":[{"type":"tool_result","content":[{"type":"image","source":{"data":"` + picture + `","media_type":"image/jpeg","type":"base64"}}]}]}]}`},
		{"Anthropic, a document", llm.Anthropic, `{"messages":[{"content":[{"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"` + document + `"}}]}]}`},
		{"Gemini, a picture (gemini-cli#16004)", llm.Gemini, `{"contents":[{"parts":[{"inlineData":{"mimeType":"image/jpeg","data":"` + picture + `"}}]}]}`},
		{"Gemini, the alphabet for addresses", llm.Gemini, `{"contents":[{"parts":[{"inline_data":{"mime_type":"image/jpeg","data":"` + urlSafe + `"}}]}]}`},
		{"Gemini, a document", llm.Gemini, `{"contents":[{"parts":[{"inlineData":{"mimeType":"application/pdf","data":"` + document + `"}}]}]}`},
		{"Gemini, sound", llm.Gemini, `{"contents":[{"parts":[{"inlineData":{"mimeType":"audio/wav","data":"` + sound + `"}}]}]}`},
		{"Gemini, compressed sound", llm.Gemini, `{"contents":[{"parts":[{"inlineData":{"mimeType":"audio/mp3","data":"` + compressed + `"}}]}]}`},
		{"Gemini, video", llm.Gemini, `{"contents":[{"parts":[{"inlineData":{"mimeType":"video/mp4","data":"` + video + `"}}]}]}`},
		{"Gemini, the result of a function", llm.Gemini, `{"contents":[{"parts":[{"functionResponse":{"response":{},"parts":[{"inlineData":{"mimeType":"image/jpeg","data":"` + picture + `"}}]}}]}]}`},
		{"Bedrock, a picture", llm.Bedrock, `{"messages":[{"content":[{"image":{"format":"jpeg","source":{"bytes":"` + picture + `"}}}]}]}`},
		{"Bedrock, a document", llm.Bedrock, `{"messages":[{"content":[{"document":{"format":"pdf","name":"a","source":{"bytes":"` + document + `"}}}]}]}`},
		{"Bedrock, sound", llm.Bedrock, `{"messages":[{"content":[{"audio":{"format":"wav","source":{"bytes":"` + sound + `"}}}]}]}`},
		{"Bedrock, video", llm.Bedrock, `{"messages":[{"content":[{"video":{"format":"mp4","source":{"bytes":"` + video + `"}}}]}]}`},
		{"Bedrock, the result of a tool", llm.Bedrock, `{"messages":[{"content":[{"toolResult":{"toolUseId":"a","content":[{"image":{"format":"jpeg","source":{"bytes":"` + picture + `"}}}]}}]}]}`},
		{"Bedrock, Claude", llm.Bedrock, `{"messages":[{"content":[{"type":"image","source":{"type":"base64","media_type":"image/jpeg","data":"` + picture + `"}}]}]}`},
		{"Bedrock, Titan", llm.Bedrock, `{"inputText":"what is it?","inputImage":"` + picture + `"}`},
		{"Vertex AI", llm.Gemini, `{"instances":[{"image":{"bytesBase64Encoded":"` + picture + `"}}]}`},
		{"Mistral, a document", llm.OpenAI, `{"messages":[{"content":[{"type":"document_url","document_url":"data:application/pdf;base64,` + document + `"}]}]}`},
		{"Mistral, sound", llm.OpenAI, `{"messages":[{"content":[{"type":"input_audio","input_audio":"` + compressed + `"}]}]}`},
		{"Ollama", llm.OpenAI, `{"messages":[{"role":"user","content":"what is it?","images":["` + picture + `"]}]}`},
	} {
		u := estimated(t, tt.p, tt.body)
		require.Greater(t, u.Input, 100, tt.name)
		require.Less(t, u.Input, 5000, tt.name)
		names = slices.DeleteFunc(names, func(name string) bool { return strings.Contains(tt.body, `"`+name+`":`) })
	}
	require.Empty(t, names, "each place in the code has a case")
}

// The body may still pass while its estimate is asked for again: some servers answer before they have read all of it.
func TestAnEstimateWhileTheBodyPasses(t *testing.T) {
	r, err := http.NewRequest(http.MethodPost, "http://api/", onlyReader{strings.NewReader(padded(4<<20, `"max_tokens":300`))})
	require.NoError(t, err)
	r.ContentLength = 4 << 20
	_, err = llm.OpenAI.Estimate(r)
	require.NoError(t, err)
	done := make(chan error)
	go func() {
		_, err := io.Copy(io.Discard, r.Body)
		done <- err
	}()
	for isDone := false; !isDone; {
		u, err := llm.OpenAI.Estimate(r)
		require.NoError(t, err)
		require.Equal(t, 1<<20, u.Input)
		select {
		case err := <-done:
			require.NoError(t, err)
			isDone = true
		default:
		}
	}
	u, err := llm.OpenAI.Estimate(r)
	require.NoError(t, err)
	require.Equal(t, llm.Usage{Input: 1 << 20, Output: 300}, u)
}

// Escapes within base64 do not hide the size of a picture, in whatever pieces the body comes.
func TestEscapesDoNotHideASize(t *testing.T) {
	escaped := 0
	for side := 400; side < 600; side++ {
		picture := file(png(side, side), 3000)
		if !strings.ContainsAny(picture[:44], "+/") {
			continue
		}
		escaped++
		want := estimated(t, llm.OpenAI, `{"data":"`+picture+`"}`).Input
		for _, written := range []string{
			strings.ReplaceAll(picture, "+", `\u002B`), strings.ReplaceAll(picture, "+", `\u002b`), strings.ReplaceAll(picture, "/", `\/`),
			picture[:20] + `\r\n` + picture[20:40] + `\n` + picture[40:],
		} {
			r, err := http.NewRequest(http.MethodPost, "http://api/", onlyReader{inPieces{strings.NewReader(`{"data":"` + written + `"}`), 1}})
			require.NoError(t, err)
			u, err := llm.OpenAI.Estimate(r)
			require.NoError(t, err)
			require.Equal(t, want, u.Input, written[:60])
		}
	}
	require.Positive(t, escaped)
}

// What is text stays text, wherever it stands: a quarter of its bytes.
func TestWhatIsText(t *testing.T) {
	picture := file(png(100, 100), 3000)
	for name, body := range map[string]string{
		"base64 in a prompt":          `{"messages":[{"content":"` + picture + `"}]}`,
		"a data URL in a prompt":      `{"messages":[{"content":[{"type":"text","text":"data:image/png;base64,` + picture + `"}]}]}`,
		"a document of plain text":    `{"messages":[{"content":[{"source":{"type":"text","media_type":"text/plain","data":"` + strings.Repeat("To be or not to be. ", 200) + `"}}]}]}`,
		"an address":                  `{"messages":[{"content":[{"image_url":{"url":"https://example.com/` + strings.Repeat("a", 2000) + `"}}]}]}`,
		"a data URL of percent signs": `{"messages":[{"content":[{"image_url":{"url":"data:text/plain,` + strings.Repeat("%20", 1000) + `"}}]}]}`,
		"a short text":                `{"messages":[{"content":[{"data":"iVBORw0KGgo="}]}]}`,
		"a name that is escaped":      `{"messages":[{"content":[{"\u0064ata":"` + picture + `"}]}]}`,
		"too deep to look at":         strings.Repeat(`{"a":[`, 100) + `{"data":"` + picture + `"}`,
		"no JSON":                     picture,
	} {
		require.Equal(t, (len(body)+3)/4, estimated(t, llm.OpenAI, body).Input, name)
	}
	plain := strings.Repeat("To be or not to be. ", 200)
	body := `{"file_data":"data:text/plain;base64,` + base64.StdEncoding.EncodeToString([]byte(plain)) + `"}`
	require.InDelta(t, len(plain)/4, estimated(t, llm.OpenAI, body).Input, 20, "a text in base64 is a text")
}

// Everything that a request asks for is found, wherever it stands, in each place that the code names.
func TestWhatARequestAsksForAtEachPlace(t *testing.T) {
	for _, place := range llm.AskPlaces() {
		require.NotEmpty(t, place[2], "%s has a source", place[0])
		parts := strings.Split(place[1], ".")
		value := "40.0e1"
		if place[1] == "model" {
			continue // TestTheModelOfARequest has it.
		}
		slices.Reverse(parts)
		for _, p := range parts {
			value = `{"` + p + `":` + value + `}`
		}
		body := `{"prompt":"` + strings.Repeat("x", 3<<20) + `",` + strings.TrimPrefix(value, "{")
		switch place[1] {
		case "n", "best_of":
			body = `{"max_tokens":1,` + body[1:]
		case "generationConfig.candidateCount":
			body = strings.Replace(body, `"candidateCount":40.0e1`, `"maxOutputTokens":1,"candidateCount":40.0e1`, 1)
		}
		for _, p := range []llm.Provider{llm.OpenAI, llm.Gemini} {
			require.Equal(t, 400, estimated(t, p, body).Output, "%s: %s", place[0], place[1])
		}
	}
}

func TestTheModelOfARequest(t *testing.T) {
	long := strings.Repeat("x", 2<<20)
	for _, tt := range []struct{ path, body, want string }{
		{"/v1/chat/completions", `{"model":"gpt-5","messages":[]}`, "gpt-5"},
		{"/v1/chat/completions", `{"model":"gpt-\"5\u00e9","x":"` + long + `"}`, `gpt-"5é`},
		{"/v1/chat/completions", `{"messages":[{"model":"inner"}]}`, ""},
		{"/v1/chat/completions", `{"model":"` + long + `"}`, long[:256]},
		{"/v1beta/models/gemini-3-flash:generateContent", `{}`, "gemini-3-flash"},
		{"/v1beta/models/gemini-3-flash:generateContent", ``, "gemini-3-flash"},
	} {
		for coding, pack := range codings {
			r, err := http.NewRequest(http.MethodPost, "http://api"+tt.path, onlyReader{strings.NewReader(pack(tt.body))})
			require.NoError(t, err)
			r.Header.Set("Content-Encoding", coding)
			require.Equal(t, tt.want, llm.Model(r), coding)
		}
	}
}

// codings compress a body.
var codings = map[string]func(string) string{
	"":     func(s string) string { return s },
	"gzip": zipped,
	"deflate": func(s string) string {
		return written(s, func(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) })
	},
	"Deflate": func(s string) string { // without its head, as some clients have it
		return written(s, func(w io.Writer) io.WriteCloser { z, _ := flate.NewWriter(w, 6); return z })
	},
	"br": func(s string) string {
		return written(s, func(w io.Writer) io.WriteCloser { return brotli.NewWriter(w) })
	},
	"zstd": func(s string) string {
		return written(s, func(w io.Writer) io.WriteCloser { z, _ := zstd.NewWriter(w); return z })
	},
}

func written(text string, through func(io.Writer) io.WriteCloser) string {
	var b bytes.Buffer
	w := through(&b)
	_, _ = io.WriteString(w, text) // A Buffer never fails.
	_ = w.Close()
	return b.String()
}

// A body that is compressed is estimated by what it holds, and sent as it came (mlflow#24573, BYK/loreai#1049, langwatch#6344).
func TestACompressedRequestIsEstimatedByWhatItHolds(t *testing.T) {
	body := padded(120_000, `"max_tokens":263`)
	for coding, pack := range codings {
		packed := pack(body)
		for _, source := range []io.Reader{strings.NewReader(packed), onlyReader{strings.NewReader(packed)}} {
			r, err := http.NewRequest(http.MethodPost, "http://api/", source)
			require.NoError(t, err)
			r.Header.Set("Content-Encoding", coding)
			u, err := llm.Anthropic.Estimate(r)
			require.NoError(t, err)
			require.Equal(t, llm.Usage{Input: 30_000, Output: 263}, u, coding)
			sent, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			require.True(t, packed == string(sent), coding)
		}
	}
	for name, tt := range map[string]struct{ coding, body string }{
		"another coding":      {"compress", body},
		"two codings":         {"gzip, gzip", body},
		"not compressed":      {"gzip", body},
		"zstd with a window":  {"zstd", "\x28\xb5\x2f\xfd\x00\xf8" + body},
		"neither zlib's head": {"deflate", body},
	} {
		r, err := http.NewRequest(http.MethodPost, "http://api/", strings.NewReader(tt.body))
		require.NoError(t, err)
		r.Header.Set("Content-Encoding", tt.coding)
		u, err := llm.Anthropic.Estimate(r)
		require.NoError(t, err, name)
		require.Equal(t, (len(tt.body)+3)/4, u.Input, "%s: its length counts", name)
	}
}

// A body that holds more than any provider takes is an error, and costs nothing.
func TestABombIsAnError(t *testing.T) {
	for _, coding := range []string{"br", "zstd"} {
		bomb := codings[coding](strings.Repeat("x", 65<<20))
		require.Less(t, len(bomb), 1<<20)
		source := io.Reader(strings.NewReader(bomb))
		if coding == "zstd" {
			source = onlyReader{source} // It has no GetBody.
		}
		r, err := http.NewRequest(http.MethodPost, "http://api/", source)
		require.NoError(t, err)
		r.Header.Set("Content-Encoding", coding)
		_, err = llm.Anthropic.Estimate(r)
		require.ErrorIs(t, err, llm.ErrBomb, coding)
	}
}

// Of a body that is longer than 1 MiB the rest is scanned as it passes, and the estimate of the whole can be had then.
func TestTheWholeBodyCountsWhenItHasPassed(t *testing.T) {
	picture := file(jpeg(1000, 1000), 1_500_000)
	text := strings.Repeat("word ", 300_000)
	for name, tt := range map[string]struct {
		body         string
		first, whole llm.Usage
	}{
		"text":                        {`{"content":"` + text + `","max_tokens":300}`, llm.Usage{Input: 375_000 + 8}, llm.Usage{Input: 375_000 + 8, Output: 300}},
		"a picture at the end":        {`{"max_tokens":300,"data":"` + picture + `"}`, llm.Usage{Input: 1334 + 7, Output: 300}, llm.Usage{Input: 1334 + 7, Output: 300}},
		"a picture behind the text":   {`{"content":"` + text + `","data":"` + picture + `"}`, llm.Usage{Input: 875_000 + 6}, llm.Usage{Input: 375_000 + 1334 + 6}},
		"text behind a picture":       {`{"data":"` + picture + `","content":"` + text + `"}`, llm.Usage{Input: 1334 + 3}, llm.Usage{Input: 375_000 + 1334 + 6}},
		"pictures behind one another": {`{"images":["` + picture + `","` + picture + `"]}`, llm.Usage{Input: 1334 + 3}, llm.Usage{Input: 2*1334 + 5}},
	} {
		for _, hasLength := range []bool{true, false} {
			r, err := http.NewRequest(http.MethodPost, "http://api/", onlyReader{inPieces{strings.NewReader(tt.body), 10_007}})
			require.NoError(t, err)
			r.ContentLength = -1
			if hasLength {
				r.ContentLength = int64(len(tt.body))
			}
			u, err := llm.Anthropic.Estimate(r)
			require.NoError(t, err)
			if hasLength {
				require.InDelta(t, tt.first.Input, u.Input, 2, name)
			}
			sent, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			require.True(t, tt.body == string(sent), name)
			u, err = llm.Anthropic.Estimate(r)
			require.NoError(t, err)
			require.InDelta(t, tt.whole.Input, u.Input, 2, name)
			require.Equal(t, tt.whole.Output, u.Output, name)
		}
		u := estimated(t, llm.Anthropic, tt.body) // With GetBody the whole is known before.
		require.InDelta(t, tt.whole.Input, u.Input, 2, name)
		require.Equal(t, tt.whole.Output, u.Output, name)
	}
}

// Only a request that makes a model run is charged tokens; any other costs a request's share.
func TestARequestThatMakesNoModelRun(t *testing.T) {
	for _, tt := range []struct {
		name, method, path, contentType string
		p                               llm.Provider
		runs                            bool
	}{
		{"OpenAI, a call", "POST", "/v1/responses", "application/json", llm.OpenAI, true},
		{"OpenAI, a call with a slash at its end", "POST", "/v1/chat/completions/", "application/json", llm.OpenAI, true},
		{"OpenAI, a call by another way", "POST", "/v1/files/%2e%2e//responses", "application/json", llm.OpenAI, true},
		{"OpenAI, a stored answer", "GET", "/v1/responses/resp_1", "", llm.OpenAI, false},
		{"OpenAI, an answer in the background is cancelled", "POST", "/v1/responses/resp_1/cancel", "application/json", llm.OpenAI, false},
		{"OpenAI, a stored answer is deleted", "DELETE", "/v1/responses/resp_1", "", llm.OpenAI, false},
		{"OpenAI, tokens are counted", "POST", "/v1/responses/input_tokens", "application/json", llm.OpenAI, false},
		{"OpenAI, a conversation is made shorter", "POST", "/v1/responses/compact", "application/json", llm.OpenAI, true},
		{"OpenAI, a stored completion is changed", "POST", "/v1/chat/completions/chatcmpl_1", "application/json", llm.OpenAI, false},
		{"OpenAI, a conversation", "POST", "/v1/conversations", "application/json", llm.OpenAI, false},
		{"OpenAI, a list", "GET", "/v1/models", "", llm.OpenAI, false},
		{"OpenAI, speech to text (TomFrankly/pipedream-notion-voice-notes#72)", "POST", "/v1/audio/transcriptions", "multipart/form-data; boundary=x", llm.OpenAI, false},
		{"OpenAI, speech to English", "POST", "/v1/audio/translations", "multipart/form-data; boundary=x", llm.OpenAI, false},
		{"OpenAI, a picture is changed (smg-project/smg#1397)", "POST", "/v1/images/edits", "multipart/form-data; boundary=x", llm.OpenAI, false},
		{"OpenAI, a picture is varied", "POST", "/v1/images/variations", "Multipart/Form-Data; boundary=x", llm.OpenAI, false},
		{"OpenAI, a video", "POST", "/v1/videos", "multipart/form-data; boundary=x", llm.OpenAI, false},
		{"Ollama, a call that claims to be a form", "POST", "/api/chat", "multipart/form-data; boundary=x", llm.OpenAI, true},
		{"OpenAI, text to speech", "POST", "/v1/audio/speech", "application/json", llm.OpenAI, true},
		{"OpenAI, a file", "POST", "/v1/files", "multipart/form-data; boundary=x", llm.OpenAI, false},
		{"OpenAI, a part of a file", "POST", "/v1/uploads/upload_1/parts", "multipart/form-data; boundary=x", llm.OpenAI, false},
		{"OpenAI, a file is complete", "POST", "/v1/uploads/upload_1/complete", "application/json", llm.OpenAI, false},
		{"OpenAI, a store", "POST", "/v1/vector_stores/vs_1/file_batches", "application/json", llm.OpenAI, false},
		{"OpenAI, a batch", "POST", "/v1/batches", "application/json", llm.OpenAI, false},
		{"OpenAI, a batch is cancelled", "POST", "/v1/batches/batch_1/cancel", "application/json", llm.OpenAI, false},
		{"Anthropic, a call", "POST", "/v1/messages", "application/json", llm.Anthropic, true},
		{"Anthropic, a call of long ago", "POST", "/v1/complete", "application/json", llm.Anthropic, true},
		{"Anthropic, a skill", "POST", "/v1/skills", "multipart/form-data; boundary=x", llm.Anthropic, false},
		{"Anthropic, tokens are counted", "POST", "/v1/messages/count_tokens", "application/json", llm.Anthropic, false},
		{"Anthropic, a batch", "POST", "/v1/messages/batches", "application/json", llm.Anthropic, false},
		{"Anthropic, a batch is cancelled", "POST", "/v1/messages/batches/msgbatch_1/cancel", "", llm.Anthropic, false},
		{"Anthropic, the results of a batch", "GET", "/v1/messages/batches/msgbatch_1/results", "", llm.Anthropic, false},
		{"Gemini, a call", "POST", "/v1beta/models/m:streamGenerateContent", "application/json", llm.Gemini, true},
		{"Gemini, a file", "POST", "/upload/v1beta/files", "image/png", llm.Gemini, false},
		{"Gemini, a store", "POST", "/upload/v1beta/fileSearchStores/s:uploadToFileSearchStore", "application/pdf", llm.Gemini, false},
		{"Gemini, tokens are counted", "POST", "/v1beta/models/m:countTokens", "application/json", llm.Gemini, false},
		{"Gemini, a batch", "POST", "/v1beta/models/m:batchGenerateContent", "application/json", llm.Gemini, false},
		{"Gemini, a batch is cancelled", "POST", "/v1beta/batches/b:cancel", "", llm.Gemini, false},
		{"Bedrock, a call", "POST", "/model/m/converse", "application/json", llm.Bedrock, true},
		{"Bedrock, tokens are counted", "POST", "/model/m/count-tokens", "application/json", llm.Bedrock, false},
		{"Bedrock, a batch", "POST", "/model-invocation-job", "application/json", llm.Bedrock, false},
		{"Bedrock, a list", "GET", "/foundation-models", "", llm.Bedrock, false},
	} {
		r, err := http.NewRequest(tt.method, "http://api"+tt.path, strings.NewReader(padded(400_000, "")))
		require.NoError(t, err)
		r.Header.Set("Content-Type", tt.contentType)
		u, err := tt.p.Estimate(r)
		require.NoError(t, err)
		require.Equal(t, tt.runs, u.Input == 100_000, tt.name)
		require.Equal(t, !tt.runs, u == llm.Usage{}, tt.name)
	}
}

// In which pieces a body comes does not matter, and whatever it is, its estimate is at most a quarter of its bytes and what is documented
// for what it has in base64.
func FuzzScan(f *testing.F) {
	f.Add([]byte(padded(100, `"max_tokens":300,"n":2`)), uint16(7))
	f.Add([]byte(`{"a":["b\\",{"data":"`+file(png(30, 30), 100)+`"}],"max_tokens":1e2}`), uint16(1))
	f.Add([]byte(`{"url":"data:image\/png;base64,AAAA","images":["`+file("%PDF-", 60)+`"`), uint16(3))
	f.Add([]byte(`[{"model":"m"},{"\"":-1.5e3}]`), uint16(2))
	f.Fuzz(func(t *testing.T, body []byte, size uint16) {
		for name, p := range providers {
			u := estimated(t, p, string(body))
			r, err := http.NewRequest(http.MethodPost, "http://api/", onlyReader{inPieces{bytes.NewReader(body), int(size)}})
			require.NoError(t, err)
			again, err := p.Estimate(r)
			require.NoError(t, err)
			require.Equal(t, u, again, name)
			require.True(t, 0 <= u.Input && u.Input <= (len(body)+3)/4+(len(body)/64+1)*5000, "%d", u.Input)
			require.GreaterOrEqual(t, u.Output, 0)
		}
	})
}

// Scanning a megabyte allocates nothing that grows with it.
func BenchmarkScan(b *testing.B) {
	word := strings.Repeat(`{\"role\":\"user\"} is quoted. `, 8)
	for name, body := range map[string]string{
		"text":     padded(1<<20, `"max_tokens":300`),
		"escapes":  `{"content":"` + strings.Repeat(word, 1<<20/len(word)) + `"}`,
		"messages": `{"messages":[` + strings.Repeat(`{"role":"user","content":"How are you?"},`, 1<<20/41) + `{}]}`,
		"picture":  `{"data":"` + file(png(100, 100), 3<<18) + `"}`,
		"numbers":  `{"input":[` + strings.Repeat("12345,", 1<<20/6) + `0]}`,
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				llm.Scanned(body)
			}
		})
	}
	for coding, pack := range codings {
		if coding == "" {
			continue
		}
		packed := pack(padded(1<<20, `"max_tokens":300`))
		b.Run(coding, func(b *testing.B) {
			b.SetBytes(1 << 20)
			b.ReportAllocs()
			for b.Loop() {
				r, _ := http.NewRequest(http.MethodPost, "http://api/", strings.NewReader(packed))
				r.Header.Set("Content-Encoding", coding)
				_, _ = llm.OpenAI.Estimate(r)
			}
		})
	}
}

// A call that does not bound its answer asks for what the provider says of it (dcdpr/jp#1085, cline#7881: Cerebras counts 16,384). One that
// bounds it, by 0 too, asks for that, and one that writes no answer for none.
func TestACallThatDoesNotBoundItsAnswer(t *testing.T) {
	l := &llm.Levels{Provider: llm.OpenAI, Quota: llm.Quota{Tokens: 60_000}, Unasked: 16_384}
	for _, tt := range []struct {
		path, fields string
		want         int
	}{
		{"/v1/chat/completions", "", 16_384},
		{"/v1/chat/completions", `"max_completion_tokens":null`, 16_384},
		{"/v1/chat/completions", `"max_completion_tokens":300`, 300},
		{"/v1/chat/completions", `"max_completion_tokens":0`, 1},
		{"/v1/embeddings", "", 0},
		{"/v1/files", "", 0},
	} {
		r, err := http.NewRequest(http.MethodPost, "http://api"+tt.path, strings.NewReader(padded(400, tt.fields)))
		require.NoError(t, err)
		c, err := l.Call("", "", r)
		require.NoError(t, err)
		require.Equal(t, tt.want, c.Estimate().Output, "%s %s", tt.path, tt.fields)
	}
}

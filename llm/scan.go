package llm

import (
	"bytes"
	"io"
	"math"
	"net/http"
	"path"
	"slices"
	"strings"
)

// An ask is what a request asks for.
type ask struct {
	most  ceiling // output tokens; 0: the request does not bound them
	times ceiling // how many answers; 0: one
	model []byte
	named bool // model has come to its end
}

// asks are the places of that in the bodies of requests.
var asks = []struct {
	of, path string
	set      func(*ask, ceiling) // nil: the name of the model
	source   string
}{
	{"all but Gemini and Bedrock", "model", nil, "platform.openai.com/docs/api-reference, 2026-11"},
	{"OpenAI's older name, and Anthropic", "max_tokens", setMost, "platform.openai.com/docs/api-reference/chat, docs.claude.com/en/api/messages, 2026-11"},
	{"OpenAI, Chat Completions", "max_completion_tokens", setMost, "platform.openai.com/docs/api-reference/chat, 2026-11"},
	{"OpenAI, Responses", "max_output_tokens", setMost, "platform.openai.com/docs/api-reference/responses, 2026-11"},
	{"Anthropic, Text Completions", "max_tokens_to_sample", setMost, "docs.claude.com/en/api/complete, 2026-11"},
	{"Bedrock: Llama", "max_gen_len", setMost, "docs.aws.amazon.com/bedrock/latest/userguide/model-parameters-meta.html, 2026"},
	{"Bedrock: Titan", "textGenerationConfig.maxTokenCount", setMost, "docs.aws.amazon.com/bedrock/latest/userguide/model-parameters-titan-text.html, 2026"},
	{"Bedrock: Converse", "inferenceConfig.maxTokens", setMost, "docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_InferenceConfiguration.html, 2026-11"},
	{"Bedrock: Nova", "inferenceConfig.max_new_tokens", setMost, "docs.aws.amazon.com/nova/latest/userguide/complete-request-schema.html, 2026"},
	{"Gemini", "generationConfig.maxOutputTokens", setMost, "ai.google.dev/api/generate-content, 2026-11"},
	{"llama.cpp", "n_predict", setMost, "ik_llama.cpp#2321; github.com/ggml-org/llama.cpp, tools/server/README.md, 2026"},
	{"Ollama", "options.num_predict", setMost, "github.com/ollama/ollama, docs/api.md, 2026"},
	{"OpenAI", "n", setTimes, "platform.openai.com/docs/api-reference/chat, 2026-11"},
	{"OpenAI, Completions", "best_of", setTimes, "platform.openai.com/docs/api-reference/completions, 2026-11"},
	{"Gemini", "generationConfig.candidateCount", setTimes, "ai.google.dev/api/generate-content, 2026-11"},
}

func setMost(a *ask, n ceiling)  { a.most = max(a.most, n) }
func setTimes(a *ask, n ceiling) { a.times = max(a.times, n) }

// holders are the places of pictures, sound and documents in base64, wherever they stand: also in the results of tools. The same names
// may hold an address or a text, which are told by their beginning.
var holders = []struct{ of, path, source string }{
	{"OpenAI, Chat Completions: image_url.url", "**.url", "platform.openai.com/docs/guides/images-vision, 2026-11: a data URL"},
	{"OpenAI, Responses", "**.image_url", "the same"},
	{"OpenAI, a document", "**.file_data", "platform.openai.com/docs/guides/pdf-files, 2026-11: a data URL"},
	{"OpenAI: input_audio.data; Anthropic: source.data; Gemini: inlineData.data", "**.data", "platform.openai.com/docs/guides/audio, docs.claude.com/en/docs/build-with-claude/vision and pdf-support, ai.google.dev/gemini-api/docs/image-understanding, 2026-11"},
	{"Bedrock, Converse: source.bytes", "**.bytes", "docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ImageSource.html, 2026-11"},
	{"Bedrock: Titan, embeddings of pictures", "**.inputImage", "docs.aws.amazon.com/bedrock/latest/userguide/model-parameters-titan-embed-mm.html, 2026"},
	{"Vertex AI, predict", "**.bytesBase64Encoded", "cloud.google.com/vertex-ai/generative-ai/docs/embeddings/get-multimodal-embeddings, 2026"},
	{"Mistral, a document: a data URL", "**.document_url", "docs.mistral.ai/capabilities/document_ai, 2026"},
	{"Mistral, sound", "**.input_audio", "docs.mistral.ai/capabilities/audio, 2026"},
	{"Ollama", "**.images.*", "github.com/ollama/ollama, docs/api.md, 2026"},
}

// scanTree has the asks, and behind them the holders.
var scanTree = func() *tree {
	var paths []string
	for _, a := range asks {
		paths = append(paths, a.path)
	}
	for _, h := range holders {
		paths = append(paths, h.path)
	}
	return newTree(paths...)
}()

// A scan reads the body of a request as it passes, in fixed memory: what it asks for, how much of it is text, and which pictures,
// sound and documents it has. These are not text: a picture of half a megabyte takes some 1,000 tokens, and not 120,000.
type scan struct {
	walker walker
	ask    ask
	length int64 // of what has come
	media  int64 // bytes of that in base64, in places where pictures and the like are
	tokens [tariffs]int

	medium medium // that has begun to come
}

func newScan() *scan {
	s := &scan{}
	s.walker = walker{tree: scanTree, on: s}
	return s
}

// Write takes the next bytes of the body. It never fails.
func (s *scan) Write(p []byte) (int, error) {
	s.length += int64(len(p))
	s.walker.write(p)
	return len(p), nil
}

func (s *scan) text(at int, p []byte, whole bool) {
	if at < len(asks) {
		if asks[at].set != nil {
			return
		}
		if s.ask.named { // Of two members of one name the last counts, as in most libraries.
			s.ask.model = nil
		}
		if s.ask.named = whole; len(s.ask.model) <= longestModel {
			s.ask.model = append(s.ask.model, p[:min(len(p), longestModel+1-len(s.ask.model))]...)
		}
		return
	}
	if s.medium.add(p); whole {
		if of, first := s.medium.content(); of != contentText {
			s.media += s.medium.length
			for t := range s.tokens {
				s.tokens[t] = sum(s.tokens[t], tariff(t).tokensOf(of, first, s.medium.length))
			}
		}
		s.medium.reset()
	}
}

func (s *scan) number(at int, written []byte) {
	if at < len(asks) && asks[at].set != nil {
		var n ceiling
		_ = n.UnmarshalJSON(written) // It never fails.
		if len(bytes.Trim(written, "0.")) == 0 {
			n = 1 // A bound of 0 is known, unlike none.
		}
		asks[at].set(&s.ask, n)
	}
}

// input returns the tokens of the body, of which so many bytes are still to come. If it has stopped within a picture, what is still
// to come is taken to be the rest of that; else it is taken to be text.
func (s *scan) input(by tariff, rest int64) int {
	tokens, text := s.tokens[by], s.length-s.media
	if of, first := s.medium.content(); of != contentText {
		text -= s.medium.length
		tokens = sum(tokens, by.tokensOf(of, first, s.medium.length+rest))
	} else if text += rest; text < 0 {
		text = math.MaxInt64
	}
	return sum(tokens, int(min(text/4+min(text%4, 1), math.MaxInt)))
}

// asked returns the input tokens of a request, a quarter of the bytes of its text and what its pictures and the like take, and what
// it asks for. Of a body that has not come yet only the first 1 MiB is read before; asked again when it has passed, the
// whole counts. A request that makes no model run has neither.
func asked(r *http.Request, by tariff) (input int, a ask, err error) {
	if !runsModel(r) {
		return 0, ask{}, nil
	}
	s, rest, err := scanned(r)
	if err != nil || s == nil {
		return 0, ask{}, err
	}
	return s.input(by, rest), s.ask, nil
}

// runsModel reports whether a request makes a model run. Only such a request is charged tokens, and any other costs a request's
// share: it reads a stored answer, whose usage was charged before, lists, cancels or deletes; it counts the tokens of a prompt; it
// begins a batch; it sends a file, for keeping or for a model of sound, pictures or video, whose limits are not of tokens
// (TomFrankly/pipedream-notion-voice-notes#72, smg-project/smg#1397). Providers have limits of their own for these
// (docs.claude.com/en/api/rate-limits, platform.openai.com/docs/guides/batch, ai.google.dev/gemini-api/docs/rate-limits).
func runsModel(r *http.Request) bool {
	if r.Method != http.MethodPost && r.Method != "" {
		return false
	}
	if r.URL == nil {
		return true
	}
	isForm := strings.HasPrefix(strings.ToLower(r.Header.Get("Content-Type")), "multipart/")
	at := path.Clean(r.URL.Path) // A server may take /files/../responses for a call, and so may one with a slash at its end.
	return !slices.ContainsFunc(idleEnds, func(end string) bool { return strings.HasSuffix(at, end) }) &&
		!slices.ContainsFunc(idleParts, func(part string) bool { return strings.Contains(at, part) }) &&
		!(isForm && slices.ContainsFunc(mediaParts, func(part string) bool { return strings.Contains(at, part) }))
}

// idleEnds and idleParts are the ends and the parts of the paths of requests that make no model run, and mediaParts of those that
// send a file in a form. A form to any other path counts by its length: some servers read a call from whatever has JSON.
var (
	mediaParts = []string{"/audio/", "/images/", "/videos"} // OpenAI
	idleEnds   = []string{
		"/count_tokens",                                                                                                          // Anthropic
		"/responses/input_tokens",                                                                                                // OpenAI
		":countTokens", ":batchGenerateContent", ":asyncBatchEmbedContent", ":uploadToFileSearchStore", ":importFile", ":cancel", // Gemini
		"/count-tokens",                 // Bedrock
		"/files", "/batches", "/cancel", // several
	}
	idleParts = []string{
		"/chat/completions/", "/uploads", "/vector_stores", "/containers", "/conversations", "/fine_tuning/", // OpenAI
		"/skills",              // Anthropic and OpenAI
		"/upload/",             // Gemini
		"/files/", "/batches/", // several
		"/model-invocation-job", // Bedrock, a batch
	}
)

// scanned returns the scan of a request's body, and how many bytes of that have not been scanned. It is nil if there is no body.
func scanned(r *http.Request) (s *scan, rest int64, err error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, 0, nil
	}
	if r.GetBody == nil {
		return peek(r, nil).scanned(r)
	}
	body, err := r.GetBody()
	if err != nil {
		return nil, 0, err
	}
	defer body.Close() // Nothing could be done about an error.
	s = newScan()
	source := &counting{r: body}
	if err := unpack(s, source, codingOf(r.Header), true); err != nil {
		return nil, 0, err
	}
	return s, max(0, r.ContentLength-source.n), nil
}

// scanned returns the scan of the body so far.
func (p *peeked) scanned(r *http.Request) (s *scan, rest int64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.scan == nil {
		p.scan, p.length = newScan(), int64(len(p.read))
		if p.coding = codingOf(r.Header); p.coding == "" {
			_, _ = p.scan.Write(p.read) // It never fails.
		} else {
			p.bomb = unpack(p.scan, bytes.NewReader(p.read), p.coding, p.whole)
		}
	}
	if p.bomb != nil {
		return nil, 0, p.bomb
	}
	copied := *p.scan // The rest may be on its way.
	rest = max(0, r.ContentLength-p.length)
	if !p.whole && r.ContentLength < 0 {
		rest = max(0, kept+1-p.length)
	}
	if p.coding != "" && p.length > 0 { // The rest holds as much for each byte.
		rest = int64(min(float64(rest)*float64(copied.length)/float64(p.length), math.MaxInt64/2))
	}
	return &copied, rest, nil
}

// passed takes bytes behind the beginning of the body as they are read.
func (p *peeked) passed(bytes []byte, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.scan == nil {
		return
	}
	p.length += int64(len(bytes))
	if p.coding == "" {
		_, _ = p.scan.Write(bytes) // It never fails.
	}
	p.whole = p.whole || err == io.EOF
}

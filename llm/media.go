package llm

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"math"
	"strings"
)

// A content is what a text in a document holds.
type content int

const (
	contentText   content = iota
	contentPacked         // a text in base64
	contentPicture
	contentDocument
	contentSound
	contentVideo
	contentOther
)

// A tariff says what pictures, sound and documents take at a provider.
type tariff int

const (
	openAITariff tariff = iota
	anthropicTariff
	geminiTariff
	tariffs
)

// tariffTable has the documented numbers. Where they depend on what is not known without decoding, such as the pages of a document
// and the length of a sound, they are for a usual megabyte.
var tariffTable = [tariffs]struct {
	picture  func(width, height float64) float64 // tokens
	unknown  float64                             // tokens of a picture whose size is not known
	document float64                             // tokens of a megabyte, and at the least of a page
	page     float64
	second   float64 // tokens of a second of sound
	source   string
}{
	openAITariff: {
		// Patches of 32 × 32 pixels, at most 1,536. Older models count tiles, up to 1,445 tokens.
		func(w, h float64) float64 { return min(math.Ceil(w/32)*math.Ceil(h/32), 1536) }, 1536,
		4500, 1500, 10,
		"platform.openai.com/docs/guides/images-vision and pdf-files: text and picture of each page; realtime-costs: a token for 100 ms, 2026-11",
	},
	anthropicTariff: {
		// A picture is reduced to a long side of 1,568 pixels and some 1,600 tokens.
		func(w, h float64) float64 {
			scale := min(1, 1568/max(w, h))
			return min(w*scale*h*scale/750, 1600)
		}, 1600,
		4500, 1500, 32,
		"docs.claude.com/en/docs/build-with-claude/vision: width × height / 750; pdf-support: 1,500 to 3,000 tokens for a page, and its picture, 2026-11. Bedrock's models are Anthropic's for the most part",
	},
	geminiTariff: {
		// A small picture is one tile, and a larger one tiles with a side of two thirds of its shorter one.
		func(w, h float64) float64 {
			if w <= 384 && h <= 384 {
				return 258
			}
			unit := max(1, math.Floor(min(w, h)/1.5))
			return 258 * min(math.Ceil(w/unit)*math.Ceil(h/unit), 16)
		}, 6 * 258,
		2580, 258, 32,
		"ai.google.dev/gemini-api/docs/image-understanding: 258 tokens a tile; document-processing: 258 a page; audio: 32 a second, 2026-11",
	},
}

const (
	megabyte = 1 << 20

	soundBytes  = 8_000 // of a second of compressed sound, at 64 kbit/s
	videoTokens = 1_200 // of a megabyte: "approximately 300 tokens per second" (ai.google.dev/gemini-api/docs/video-understanding, 2026-11), at 2 Mbit/s

	headKept = 1_400 // letters of base64 that are kept: a kilobyte
)

// A medium is a text of a document that may hold a picture or the like in base64: the beginning of it, and its length.
type medium struct {
	length int64
	head   [headKept]byte // without escapes: libraries write \/, \u002B, and \n at the end of a line
	kept   int

	escaping bool // a backslash has come
	digits   int  // of \u that are to come
	code     byte // of those that have come
}

func (m *medium) reset() { *m = medium{} }

func (m *medium) add(p []byte) {
	m.length += int64(len(p))
	for _, c := range p {
		switch {
		case m.kept == len(m.head):
			return
		case m.digits > 0:
			if m.code = m.code<<4 | fromHex(c); m.digits > 1 {
				m.digits--
				continue
			}
			c, m.digits = m.code, 0
		case m.escaping && c == 'u':
			m.escaping, m.digits, m.code = false, 4, 0
			continue
		case m.escaping:
			if m.escaping = false; c == 'n' || c == 'r' {
				c = '\n'
			}
		case c == '\\':
			m.escaping = true
			continue
		}
		m.head[m.kept] = c
		m.kept++
	}
}

// fromHex returns the value of a hexadecimal digit.
func fromHex(c byte) byte {
	if c >= 'A' {
		return c&^0x20 - 'A' + 10
	}
	return c - '0'
}

// split returns the type that a data URL names, "" if the text is none, and the beginning of what is in base64; nil if nothing is.
func (m *medium) split() (mediaType string, packed []byte) {
	head := m.head[:m.kept]
	url, isURL := bytes.CutPrefix(head, []byte("data:"))
	if !isURL {
		return "", head
	}
	named, packed, ok := bytes.Cut(url, []byte(","))
	named, isPacked := bytes.CutSuffix(named, []byte(";base64"))
	if !ok || !isPacked {
		return "", nil
	}
	mediaType, _, _ = strings.Cut(string(named), ";")
	return strings.ToLower(mediaType), packed
}

// plain returns the first bytes of what is in base64, in either of its alphabets.
func plain(packed []byte) []byte {
	letters := append(make([]byte, 0, headKept), packed...)
	for i, c := range letters {
		switch c {
		case '-':
			letters[i] = '+'
		case '_':
			letters[i] = '/'
		}
	}
	letters = bytes.TrimRight(letters, "=")
	decoded, _ := base64.RawStdEncoding.AppendDecode(nil, letters[:len(letters)/4*4]) // Up to a letter that is none.
	return decoded
}

// Short texts, and texts without a type and a known beginning that are not long, are text: names and addresses.
const (
	shortestMedium = 64
	shortestOther  = 1024
)

// content returns what the text holds, and its first bytes.
func (m *medium) content() (of content, first []byte) {
	mediaType, packed := m.split()
	if packed == nil || mediaType == "" && m.length < shortestMedium {
		return contentText, nil
	}
	first = plain(packed)
	switch group, _, _ := strings.Cut(mediaType, "/"); {
	case group == "image":
		return contentPicture, first
	case group == "audio":
		return contentSound, first
	case group == "video":
		return contentVideo, first
	case group == "text", mediaType == "application/json":
		return contentPacked, first
	}
	for _, known := range beginnings {
		if len(first) > known.at && bytes.HasPrefix(first[known.at:], []byte(known.bytes)) {
			return known.content, first
		}
	}
	if mediaType != "" || m.length >= shortestOther && len(first) >= len(packed)*3/4-3 {
		return contentOther, first
	}
	return contentText, nil
}

// beginnings are the first bytes of files.
var beginnings = []struct {
	at      int
	bytes   string
	content content
}{
	{0, "\x89PNG\r\n\x1a\n", contentPicture},
	{0, "\xff\xd8\xff", contentPicture}, // JPEG
	{0, "GIF8", contentPicture},
	{8, "WEBP", contentPicture},
	{4, "ftyphei", contentPicture}, {4, "ftypavif", contentPicture}, {4, "ftypmif1", contentPicture}, // HEIC and AVIF
	{0, "%PDF-", contentDocument},
	{8, "WAVE", contentSound}, {0, "fLaC", contentSound}, {0, "OggS", contentSound}, {4, "ftypM4A", contentSound},
	{0, "ID3", contentSound}, {0, "\xff\xfb", contentSound}, {0, "\xff\xf3", contentSound}, {0, "\xff\xf1", contentSound}, // MP3 and AAC
	{4, "ftyp", contentVideo}, {0, "\x1a\x45\xdf\xa3", contentVideo}, // MP4 and WebM
}

// tokensOf returns what takes so many letters of base64 whose first bytes are known.
func (t tariff) tokensOf(c content, first []byte, letters int64) int {
	is := &tariffTable[t]
	size := float64(letters) * 3 / 4
	n := 0.0
	switch c {
	case contentPicture:
		n = is.unknown
		if width, height := sizeOf(first); width > 0 && height > 0 {
			n = is.picture(float64(width), float64(height))
		}
	case contentSound:
		n = size / bytesOfSecond(first) * is.second
	case contentVideo:
		n = size / megabyte * videoTokens
	case contentPacked:
		n = size / 4
	default:
		n = max(size/megabyte*is.document, is.page)
	}
	return int(min(max(1, math.Ceil(n)), math.MaxInt32))
}

// bytesOfSecond returns how many bytes of a sound are a second. A WAV says so.
func bytesOfSecond(first []byte) float64 {
	if len(first) >= 32 && string(first[8:12]) == "WAVE" && string(first[12:16]) == "fmt " {
		return max(float64(binary.LittleEndian.Uint32(first[28:])), soundBytes/8)
	}
	return soundBytes
}

// sizeOf returns the size of a picture by its first bytes, 0 if they do not say.
func sizeOf(first []byte) (width, height int) {
	at := func(i int, order binary.ByteOrder) int { return int(order.Uint16(first[i:])) }
	switch {
	case len(first) >= 24 && first[0] == 0x89: // PNG, IHDR
		return int(binary.BigEndian.Uint32(first[16:])), int(binary.BigEndian.Uint32(first[20:]))
	case len(first) >= 10 && bytes.HasPrefix(first, []byte("GIF8")):
		return at(6, binary.LittleEndian), at(8, binary.LittleEndian)
	case len(first) >= 30 && string(first[8:12]) == "WEBP":
		switch string(first[12:16]) {
		case "VP8 ":
			return at(26, binary.LittleEndian) & 0x3fff, at(28, binary.LittleEndian) & 0x3fff
		case "VP8L":
			bits := binary.LittleEndian.Uint32(first[21:])
			return int(bits&0x3fff) + 1, int(bits>>14&0x3fff) + 1
		case "VP8X":
			return at(24, binary.LittleEndian) + int(first[26])<<16 + 1, at(27, binary.LittleEndian) + int(first[29])<<16 + 1
		}
	case bytes.HasPrefix(first, []byte{0xff, 0xd8}): // JPEG: segments, of which one has the size
		for i := 2; i+9 <= len(first) && first[i] == 0xff; {
			marker := first[i+1]
			if marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc {
				return at(i+7, binary.BigEndian), at(i+5, binary.BigEndian)
			}
			i += 2 + at(i+2, binary.BigEndian)
		}
	}
	return 0, 0
}

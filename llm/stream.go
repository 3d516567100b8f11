package llm

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
)

// A splitter finds the events in the bytes of a body, and hands each to a function. An event that is
// longer than 1 MiB is left out. A splitter holds no more than one event.
type splitter interface {
	write(p []byte)
	end() // The body has ended.
}

// An onEvent takes an event: its name, if it has one, and its data, which are valid only until
// it returns.
type onEvent func(name string, data []byte)

// A piece is the part of an event that has come so far.
type piece struct {
	text    []byte
	tooLong bool
}

func (p *piece) add(text []byte) {
	if p.tooLong = p.tooLong || len(p.text)+len(text) > kept; p.tooLong {
		p.text = nil // It may be the largest that there is.
		return
	}
	p.text = append(p.text, text...)
}

func (p *piece) reset() { p.text, p.tooLong = p.text[:0], false }

// jsonValues finds the objects of a body: one, several in a row, or the elements of an array, as
// Gemini streams without alt=sse.
type jsonValues struct {
	on    onEvent
	whole func() // is called when the array, or an object outside one, has ended

	object   piece
	depth    int // of objects and arrays within the object
	inArray  bool
	inText   bool
	escaping bool
}

func (j *jsonValues) write(p []byte) {
	start := 0 // of the object in p
	for i, c := range p {
		switch {
		case j.inText:
			switch {
			case j.escaping:
				j.escaping = false
			case c == '\\':
				j.escaping = true
			case c == '"':
				j.inText = false
			}
		case j.depth == 0:
			switch c {
			case '{':
				j.depth, start = 1, i
			case '[':
				j.inArray = true
			case ']':
				j.inArray = false
				j.whole()
			}
		case c == '"':
			j.inText = true
		case c == '{', c == '[':
			j.depth++
		case c == '}', c == ']':
			if j.depth--; j.depth > 0 {
				break
			}
			j.object.add(p[start : i+1])
			if !j.object.tooLong {
				j.on("", j.object.text)
			}
			j.object.reset()
			if !j.inArray {
				j.whole()
			}
		}
	}
	if j.depth > 0 {
		j.object.add(p[start:])
	}
}

func (j *jsonValues) end() {}

// serverSentEvents finds the events of a text/event-stream (html.spec.whatwg.org, section 9.2).
type serverSentEvents struct {
	on onEvent

	line    piece
	afterCR bool // the line before ended with a CR, to which an LF may belong
	data    piece
	hasData bool
	name    string
	begun   bool // the first line, which may begin with a byte order mark, is over
}

func (s *serverSentEvents) write(p []byte) {
	if s.afterCR && len(p) > 0 {
		s.afterCR = false
		p = bytes.TrimPrefix(p, []byte("\n"))
	}
	for {
		i := bytes.IndexAny(p, "\r\n")
		if i < 0 {
			break
		}
		s.line.add(p[:i])
		s.endLine()
		ended := p[i]
		p = p[i+1:]
		if ended == '\r' {
			if s.afterCR = len(p) == 0; !s.afterCR {
				p = bytes.TrimPrefix(p, []byte("\n"))
			}
		}
	}
	s.line.add(p)
}

// end counts an unfinished last event, too: some servers leave out the empty line.
func (s *serverSentEvents) end() {
	if len(s.line.text) > 0 || s.line.tooLong {
		s.endLine()
	}
	s.endEvent()
}

func (s *serverSentEvents) endLine() {
	defer s.line.reset()
	line := s.line.text
	if s.line.tooLong {
		// It may have been data, so the event is not whole.
		s.hasData, s.data = true, piece{tooLong: true}
		return
	}
	if !s.begun {
		s.begun = true
		line = bytes.TrimPrefix(line, []byte("\ufeff"))
	}
	if len(line) == 0 {
		s.endEvent()
		return
	}
	field, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(field) { // "" is a comment.
	case "data":
		if s.hasData {
			s.data.add([]byte("\n"))
		}
		s.data.add(value)
		s.hasData = true
	case "event":
		s.name = string(value)
	}
}

func (s *serverSentEvents) endEvent() {
	if s.hasData && !s.data.tooLong {
		s.on(s.name, s.data.text)
	}
	s.data.reset()
	s.hasData, s.name = false, ""
}

// The lengths of a message of an Amazon event stream (docs.aws.amazon.com/lexv2/latest/dg/event-stream-encoding.html,
// read in 2026-11): the lengths of the message and of the headers, 4 bytes each, their CRC, the headers, the
// payload, and the CRC of all that.
const (
	prelude    = 12
	trailer    = 4
	headerText = 7 // the type of a header's value that is a text
)

// amazonEvents finds the messages of application/vnd.amazon.eventstream. A wrong checksum ends
// the search, because the beginning of the next message is unknown then.
type amazonEvents struct {
	on onEvent

	message []byte // its bytes so far
	skip    int64  // bytes that still belong to a message that is too long
	broken  bool
}

func (a *amazonEvents) write(p []byte) {
	for len(p) > 0 && !a.broken {
		if a.skip > 0 {
			n := min(a.skip, int64(len(p)))
			a.skip -= n
			p = p[n:]
			continue
		}
		want := prelude
		if len(a.message) >= prelude {
			want = int(binary.BigEndian.Uint32(a.message))
		}
		n := min(want-len(a.message), len(p))
		a.message = append(a.message, p[:n]...)
		p = p[n:]
		switch {
		case len(a.message) < want:
		case want == prelude:
			a.checkPrelude()
		default:
			a.endMessage()
		}
	}
}

func (a *amazonEvents) end() {}

func (a *amazonEvents) checkPrelude() {
	total := binary.BigEndian.Uint32(a.message)
	headers := binary.BigEndian.Uint32(a.message[4:])
	switch {
	case crc32.ChecksumIEEE(a.message[:8]) != binary.BigEndian.Uint32(a.message[8:]),
		total < prelude+trailer, headers > total-prelude-trailer:
		a.broken = true
	case total > kept:
		a.skip = int64(total) - prelude
		a.message = a.message[:0]
	}
}

func (a *amazonEvents) endMessage() {
	message := a.message
	a.message = a.message[:0]
	end := len(message) - trailer
	if crc32.ChecksumIEEE(message[:end]) != binary.BigEndian.Uint32(message[end:]) {
		a.broken = true
		return
	}
	payload := prelude + int(binary.BigEndian.Uint32(message[4:]))
	a.on(eventType(message[prelude:payload]), message[payload:end])
}

// eventType returns the value of the header :event-type, or of :exception-type, which an error has; "" if there is neither.
func eventType(headers []byte) string {
	// The lengths of values by their type: true, false, byte, short, integer, long, bytes and text (which
	// have a length of their own), timestamp, UUID.
	lengths := [...]int{0, 0, 1, 2, 4, 8, -1, -1, 8, 16}
	for len(headers) > 1 {
		nameEnd := 1 + int(headers[0])
		if len(headers) <= nameEnd {
			return ""
		}
		name, kind := headers[1:nameEnd], int(headers[nameEnd])
		headers = headers[nameEnd+1:]
		if kind >= len(lengths) {
			return ""
		}
		length := lengths[kind]
		if length < 0 {
			if len(headers) < 2 {
				return ""
			}
			length = int(binary.BigEndian.Uint16(headers))
			headers = headers[2:]
		}
		if len(headers) < length {
			return ""
		}
		if kind == headerText && (string(name) == ":event-type" || string(name) == ":exception-type") {
			return string(headers[:length])
		}
		headers = headers[length:]
	}
	return ""
}

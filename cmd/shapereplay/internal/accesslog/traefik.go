package accesslog

import (
	"bytes"
	"time"
)

// traefik reads both of Traefik's formats. Its text is the combined format with four more
// fields, of which the last is the duration:
//
//	… "curl/8" 12 "shop@docker" "http://10.0.0.5:80" 3ms
//
// The time is the arrival. As Traefik does not escape quotes, the duration is looked for
// at the end of the line.
type traefik struct {
	text   *combined
	object *jsonLines
}

func newTraefik(o Options, t *texts) (parser, error) {
	o.Trailing = nil
	if o.Stamp == "" {
		o.Stamp = Arrival
	}
	text, err := newCombined(o, t)
	return &traefik{text, newJSONLines(o, traefikNames(), t)}, err
}

func (p *traefik) subtracts() bool { return true } // its JSON without StartUTC

func (p *traefik) parse(line []byte, e *entry) Reason {
	if line[0] == '{' {
		return p.object.parse(line, e)
	}
	// Before the rest is parsed, because that may change the bytes.
	i := bytes.LastIndexByte(line, ' ')
	elapsed, ok := bytes.CutSuffix(line[i+1:], []byte("ms"))
	if i < 0 || !ok {
		return NotFormat
	}
	if e.setDuration(elapsed, time.Millisecond); !e.timed {
		return NotFormat
	}
	return p.text.parse(line[:i], e)
}

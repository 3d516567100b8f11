package accesslog

import (
	"bytes"
	"strings"
)

// A w3c reads W3C's extended format, which names its fields in a line of its own: maybe
// several times, and others each time.
type w3c struct {
	o     Options
	texts *texts
	names []string // of the fields
	day   []byte   // of the line #Date, for lines that tell the time only
	text  *pattern // nil: no line has come since the names
}

// cloudFrontFields are the fields of a log of CloudFront that has lost its first lines.
var cloudFrontFields = strings.Fields(`date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status cs(Referer)
	cs(User-Agent) cs-uri-query cs(Cookie) x-edge-result-type x-edge-request-id x-host-header cs-protocol cs-bytes time-taken x-forwarded-for`)

// w3cFields are the fields that are read. cs(NAME) is a header field, and so may be any other.
var w3cFields = map[string]variable{
	"date":          {what: ofDay},
	"time":          {what: ofClock},
	"c-ip":          {what: ofClient},
	"cs-method":     {what: ofMethod},
	"cs-uri-stem":   {what: ofURI},
	"cs-uri":        {what: ofURI, rank: 1},
	"x-host-header": {what: ofHost}, // CloudFront's cs(Host) is its own name
	"cs-host":       {what: ofHost, rank: 1},
	"cs(Host)":      {what: ofHost, rank: 2},
	"sc-status":     {what: ofStatus},
	"time-taken":    {what: ofDuration},
}

func newW3C(names []string) newParser {
	return func(o Options, t *texts) (parser, error) { return &w3c{o: o, texts: t, names: names}, nil }
}

func (w *w3c) subtracts() bool { return w.o.Stamp != Arrival }

func (w *w3c) parse(line []byte, e *entry) Reason {
	if line[0] == '#' {
		name, value, ok := bytes.Cut(line, []byte(":"))
		switch {
		case !ok:
			return NotFormat
		case string(name) == "#Fields":
			w.names, w.text = strings.Fields(string(value)), nil
		case string(name) == "#Date":
			w.day, _ = cutWord(bytes.Clone(bytes.TrimSpace(value)))
		}
		return noRequestMeant
	}
	if w.text == nil && !w.begin(line) {
		return NoFields
	}
	return w.text.parse(line, e)
}

// begin makes the pattern of the lines. The first of the lines tells what stands between fields.
func (w *w3c) begin(line []byte) bool {
	between := []byte(" ")
	p := &pattern{texts: w.texts, header: w.o.Header, stamp: End, plain: asItIs, value: plus, day: w.day}
	if bytes.IndexByte(line, '\t') >= 0 {
		between, p.value = []byte("\t"), unmark('%') // as CloudFront writes it
	}
	if w.o.Stamp != "" {
		p.stamp = w.o.Stamp
	}
	for _, name := range w.names {
		v, known := w3cFields[name]
		if !known {
			v = variable{what: ofHeader, name: strings.TrimSuffix(strings.TrimPrefix(name, "cs("), ")")}
		}
		p.fields = append(p.fields, field{variable: v, until: between})
	}
	if n := len(p.fields); n > 0 {
		p.fields[n-1].until = nil
	}
	if p.check() != nil {
		return false
	}
	w.text = p
	return true
}

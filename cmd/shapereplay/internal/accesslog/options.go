package accesslog

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// Options say how logs are read. The zero value recognises the format of every file.
type Options struct {
	Format Format // "" is Auto; with Fields it is JSON, and with Trailing Combined
	Fields Fields // of the format JSON
	Stamp  Stamp  // what the times are; "" is what the package comment says of the format

	// Trailing says what follows the user agent in lines of the format Combined, one word
	// for each field:
	//
	//	-               nothing that is wanted
	//	time            the time, more exactly than before, as nginx's $msec
	//	duration:UNIT   the duration; UNIT is s, ms, us or ns
	//	host            the host that the request is for
	//	client          the client's address, instead of the first field; of a list the last that is not private
	//	header:NAME     the header field NAME, instead of the one that the format has
	//
	// A field that is written as name=value has the value alone. What comes after the last
	// of them is not looked at.
	Trailing []string

	// Header names the header fields that are wanted.
	Header []string

	// Spread spreads the requests of one second evenly over it, where times are told in
	// whole seconds.
	Spread bool

	// Window is how far back times may go from one line to a later one of the same file.
	// 0 means a minute, and with the format Usage, whose calls may take long, an hour.
	Window time.Duration

	Stdin io.Reader // the meaning of the file name "-"; nil is os.Stdin
}

// A Stamp is the meaning of the time of a line: the request's arrival, or its end.
type Stamp string

// The stamps.
const (
	Arrival Stamp = "arrival"
	End     Stamp = "end"
)

// Fields names the fields of JSON objects. A dot leads into an object:
// "request.method". A field that is "" is looked for under the names that are usual for
// it.
type Fields struct {
	Time     string // RFC 3339 or the like, or the time since 1970 in seconds, ms, µs or ns, which its size tells; as text or number
	Method   string
	URI      string // the path with or without a query, a URL, or a request line ("GET / HTTP/1.1")
	Host     string
	Client   string // an address, with or without a port
	Status   string
	Duration string // a number, or text like "1.5ms"

	// DurationUnit is what durations count that are plain numbers, at most a second.
	// 0 means a second.
	DurationUnit time.Duration

	// Header names the fields that have header fields, by the name of the header field.
	Header map[string]string
}

// Given reports whether anything is said of fields.
func (f Fields) Given() bool {
	return f.Time+f.Method+f.URI+f.Host+f.Client+f.Status+f.Duration != "" || f.DurationUnit != 0 || len(f.Header) > 0
}

// An OptionError is a mistake in one of the [Options].
type OptionError struct {
	Option string // its name
	Reason string // the value, and what it must be
}

func (e *OptionError) Error() string { return e.Option + ": " + e.Reason }

// checked returns the options with what 0 stands for, or an error that names the first
// one that is wrong.
func (o Options) checked() (Options, error) {
	if o.Format == "" {
		o.Format = Auto
	}
	// What describes one format is not to be passed over because another fits the log.
	switch fields, trailing := o.Fields.Given(), len(o.Trailing) > 0; {
	case fields && trailing:
		return o, &OptionError{"Fields", "of the format json, and trailing is of combined: use one of them"}
	case fields && o.Format != Auto && o.Format != JSON:
		return o, &OptionError{"Fields", fmt.Sprintf("of the format json, and the format is %s", o.Format)}
	case trailing && o.Format != Auto && o.Format != Combined:
		return o, &OptionError{"Trailing", fmt.Sprintf("of the format combined, and the format is %s", o.Format)}
	case fields:
		o.Format = JSON
	case trailing:
		o.Format = Combined
	}
	if _, err := o.Format.parsers(o, newTexts()); err != nil {
		if wrong, ok := errors.AsType[*OptionError](err); ok {
			return o, wrong
		}
		return o, &OptionError{"Format", fmt.Sprintf("%q: %v", o.Format, err)}
	}
	if !slices.Contains([]Stamp{"", Arrival, End}, o.Stamp) {
		return o, &OptionError{"Stamp", fmt.Sprintf("%q, must be arrival or end", o.Stamp)}
	}
	if o.Window == 0 {
		if o.Window = time.Minute; o.Format == Usage {
			o.Window = time.Hour
		}
	}
	if o.Window < 0 {
		return o, &OptionError{"Window", fmt.Sprintf("%v, must not be negative", o.Window)}
	}
	if o.Fields.DurationUnit == 0 {
		o.Fields.DurationUnit = time.Second
	}
	if o.Fields.DurationUnit < 0 || o.Fields.DurationUnit > time.Second {
		return o, &OptionError{"Fields.DurationUnit", fmt.Sprintf("%v, must be from 1ns to 1s", o.Fields.DurationUnit)}
	}
	for _, name := range o.Header {
		if name == "" {
			return o, &OptionError{"Header", fmt.Sprintf("%q, must be the name of a header field", name)}
		}
	}
	return o, nil
}

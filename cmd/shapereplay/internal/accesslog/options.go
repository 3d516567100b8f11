package accesslog

import (
	"io"
	"time"
)

// Options say how logs are read. The zero value recognises the format of every file.
type Options struct {
	Format   Format   // "" is Auto
	Fields   Fields   // of the format JSON
	Trailing []string // of the format Combined: see [ParseTrailing]
	Stamp    Stamp    // what the times are; "" is what the package comment says of the format
	Header   []string // names of the header fields that are wanted

	// Spread spreads the requests of one second evenly over it, where times are told in
	// whole seconds.
	Spread bool

	// Window is how far back times may go from one line to a later one of the same file.
	// 0 means a minute.
	Window time.Duration

	// Examples is how many broken lines are kept of each reason. 0 means 3.
	Examples int

	Stdin io.Reader // what the file name "-" means; nil is os.Stdin
}

// A Format is how the lines of a log are written.
type Format string

// Auto stands for the format that fits the first lines of a file best.
const (
	Auto     Format = "auto"
	Combined Format = "combined"
	JSON     Format = "json"
	Caddy    Format = "caddy"
	Traefik  Format = "traefik"
)

// A Stamp is what the time of a line is: the request's arrival, or its end.
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
	Time     string // RFC 3339, or the time since 1970 in seconds, ms, µs or ns, by its size; as text or number
	Method   string
	URI      string // the path with or without a query, a URL, or a request line ("GET / HTTP/1.1")
	Host     string
	Client   string // an address, with or without a port
	Status   string
	Duration string // a number, or text like "1.5ms"

	// DurationUnit is what durations count that are plain numbers. 0 means a second.
	DurationUnit time.Duration

	// Header names the fields that have header fields, by the name of the header field.
	Header map[string]string
}

package accesslog

import "time"

// A Record is one request.
type Record struct {
	At     time.Time // when it arrived, in UTC
	Method string
	Host   string // as the request or the virtual host names it, maybe with a port; "" if the log does not tell
	Path   string // as it was sent, with its percent-encoding but without the query; "*" for OPTIONS *, "" for CONNECT
	Client string // its address in the usual notation without a port, or what the log has instead; "" if it does not tell

	Status   int           // 0 if the log does not tell
	Duration time.Duration // 0 if the log does not tell, or tells 0

	// Header has the values of the fields that Options.Header names, in their order.
	// A value is "" if the log does not tell it.
	Header []string
}

package inspect

import (
	"log/slog"
	"strings"
)

// An Option changes how an [Inspector] behaves.
type Option interface{ apply(*options) }

type option func(*options)

func (f option) apply(o *options) { f(o) }

type options struct {
	title   string
	script  string
	logger  *slog.Logger
	hosts   []string // in lower case
	token   string
	control bool // WithControl was given
}

// WithHosts names hosts by which clients may call the [Inspector], beside the loopback
// names: "shapers.internal", or with a port "10.1.2.3:6060". With it, clients of other
// machines are answered, so let only those reach the listener who may see the keys.
func WithHosts(hosts ...string) Option {
	return option(func(o *options) {
		for _, host := range hosts {
			o.hosts = append(o.hosts, strings.ToLower(host))
		}
	})
}

// WithControl lets whoever knows the token change limits for a time, and hold and
// release lines. The token is sent as "Authorization: Bearer …" and must not be empty.
func WithControl(token string) Option {
	return option(func(o *options) { o.token, o.control = token, true })
}

// WithLogger sets the logger for changes and mistakes. The default is [slog.Default].
func WithLogger(logger *slog.Logger) Option {
	return option(func(o *options) {
		if logger != nil {
			o.logger = logger
		}
	})
}

// WithTitle sets the title of the page.
func WithTitle(title string) Option {
	return option(func(o *options) { o.title = title })
}

// WithScript names a JavaScript module, by its path on the same host, which the page
// loads after its own. It may fill the element with the id "panel", for example with
// buttons.
func WithScript(path string) Option {
	return option(func(o *options) { o.script = path })
}

// validate returns what is wrong with the options, or nil.
func (o *options) validate() error { return nil }

// mayControl reports whether the control part is there at all.
func (o *options) mayControl() bool { return o.control && o.token != "" }

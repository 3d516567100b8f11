package inspect

import (
	"crypto/sha256"
	"errors"
	"log/slog"
	"strings"
)

// An Option changes how an [Inspector] behaves.
type Option interface{ apply(*options) }

type option func(*options)

func (f option) apply(o *options) { f(o) }

type options struct {
	title  string
	script string
	logger *slog.Logger
	hosts  []string // in lower case, without the brackets of an address of IPv6

	control     bool // WithControl was given
	tokenHash   [sha256.Size]byte
	tokenLength int
}

// WithHosts names hosts by which clients may call the [Inspector], beside the loopback
// names: "shapers.internal", or with a port "10.1.2.3:6060". With it, clients of other
// machines are answered, so let only those reach the listener who may see the keys. An
// empty name, as of a variable that is not set, names no host and is left out.
func WithHosts(hosts ...string) Option {
	return option(func(o *options) {
		for _, host := range hosts {
			if host = bare(strings.ToLower(strings.TrimSpace(host))); host != "" {
				o.hosts = append(o.hosts, host)
			}
		}
	})
}

// WithControl lets whoever knows the token change limits for a time, and hold and
// release lines. The token is sent as "Authorization: Bearer TOKEN". It should be
// random, as by crypto/rand.Text; one of less than 16 bytes is taken, and the log warns of
// it. With an empty one nothing can be changed, and [Inspector.Err] says why. White space
// around it, such as the end of the line in a file, does not count. Without WithControl the
// [Inspector] is read-only.
func WithControl(token string) Option {
	token = strings.TrimSpace(token)
	return option(func(o *options) {
		o.control, o.tokenHash, o.tokenLength = true, sha256.Sum256([]byte(token)), len(token)
	})
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

// validate returns an error if the options do not go together, or nil.
func (o *options) validate() error {
	switch {
	case !o.control || o.tokenLength > 0:
		return nil
	case len(o.hosts) > 0:
		return errors.New("inspect: WithControl has no token, but WithHosts lets other machines call: nothing can be changed")
	}
	return errors.New("inspect: WithControl has no token: nothing can be changed")
}

// mayControl reports whether the control part is there at all.
func (o *options) mayControl() bool { return o.control && o.validate() == nil }

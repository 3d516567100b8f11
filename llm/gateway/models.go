package gateway

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"example.com/leakybucket/shaper"
)

// A Model is the gateway for the calls of some models, which have a quota of their own: OpenAI, Anthropic and Gemini have limits
// for each model, or class of models. Its line, holds, and what is left are of these models alone.
type Model struct {
	Pattern string // of the models' names, in which * stands for any characters, as in claude-sonnet-*; "": any model
	*Gateway
}

// Models are gateways to one provider. A call waits in the line of the first whose pattern its model matches. A call that names a
// model for which there is none is refused with status 404, and told which there are. A request that names no model, or asks for
// a list or a stored answer, waits in the line of any model; if there is none, in the first.
type Models []Model

// Wrap is [Gateway.Wrap] for several of them. The first reads the bodies of all calls, within its [Config].Bodies.
func (m Models) Wrap(next http.Handler) http.Handler {
	lines := map[*Gateway]func() *inLine{}
	for _, of := range m {
		lines[of.Gateway] = of.inLine(next)
	}
	first := m[0].Gateway
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isPreflight(r) {
			next.ServeHTTP(w, r)
			return
		}
		c := &call{models: m, g: first, request: r, arrived: time.Now(), body: &body{of: &first.config.Ledger.bodies}}
		outer := r.Context()
		// Handlers around this one may look at the request that they have made, as Caddy's do.
		*r = *r.WithContext(context.WithValue(outer, callKey{}, c))
		defer func() {
			*r = *r.WithContext(outer)
			c.end(r)
		}()
		if err := c.read(w, r); err != nil {
			if !errors.Is(err, shaper.ErrBody) && !errors.Is(err, errNoRoom) { // After these a deadline has passed.
				giveUpBody(w, r)
			}
			c.g.refuse(w, r, err)
			return
		}
		c.entered = time.Now()
		l := lines[c.g]()
		c.line = l.line
		l.ServeHTTP(w, r)
	})
}

// isPreflight reports whether a browser asks whether a page may make a call (fetch.spec.whatwg.org, CORS-preflight request). The
// browser sends no token with that, it is the provider's to answer, and it is no call: it neither waits nor counts.
func isPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != ""
}

// of returns the gateway of a call's model. With an error it is the first.
func (m Models) of(model string, r *http.Request) (*Gateway, error) {
	fallback := (*Gateway)(nil)
	for _, of := range m {
		switch {
		case of.Pattern == "":
			fallback = of.Gateway
		case matches(of.Pattern, model):
			return of.Gateway, nil
		}
	}
	switch {
	case fallback != nil:
		return fallback, nil
	case model == "" || r.Method != http.MethodPost:
		return m[0].Gateway, nil
	}
	return m[0].Gateway, &unknownModelError{m}
}

// An unknownModelError is for a call of a model that no pattern matches.
type unknownModelError struct{ Models }

func (*unknownModelError) Error() string {
	return "gateway: there is no quota for the model of the call"
}

// told returns the error as callers are told it.
func (e *unknownModelError) told() string {
	var patterns []string
	for _, of := range e.Models {
		patterns = append(patterns, of.Pattern)
	}
	return "The gateway has no quota for the model of the call; it has quotas for " + strings.Join(patterns, ", ") + "."
}

// matches reports whether a name matches a pattern, in which each * stands for any characters.
func matches(pattern, name string) bool {
	begin, rest, several := strings.Cut(pattern, "*")
	if !several {
		return pattern == name
	}
	name, ok := strings.CutPrefix(name, begin)
	for ok {
		var part string
		if part, rest, several = strings.Cut(rest, "*"); !several {
			return strings.HasSuffix(name, part)
		}
		_, name, ok = strings.Cut(name, part)
	}
	return false
}

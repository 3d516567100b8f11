package caddyshaper

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"example.com/leakybucket/inspect"
)

// inspectors are the Inspectors that configurations use, by their options, so that a reload
// goes on with them.
var inspectors = caddy.NewUsagePool()

// An inspectorKey is what makes two Inspectors the same.
type inspectorKey struct {
	admin   bool // of the admin endpoint
	title   string
	hosts   string // with blanks between them
	control bool
	token   string
}

// A keptInspector shows all lines that are in use under the options of a configuration, until
// none wants it.
type keptInspector struct{ *inspect.Inspector }

// cores has what all keptInspectors have in common, as long as there is one: the lines, their
// histories, and one list of changes, so that what is changed by a page can be put back by the
// admin endpoint.
var cores = caddy.NewUsagePool()

// A coreKey is the key of the only value of cores.
type coreKey struct{}

// A core is an Inspector that is not served itself.
type core struct {
	*inspect.Inspector
	unfollow, unreport func()
}

// useInspector returns the Inspector of key. Each call must be undone by leaveInspector.
func useInspector(key inspectorKey) (*keptInspector, error) {
	kept, _, err := inspectors.LoadOrNew(key, func() (caddy.Destructor, error) { return newInspector(key) })
	if err != nil {
		return nil, err
	}
	return kept.(*keptInspector), nil
}

func leaveInspector(key inspectorKey) error {
	_, err := inspectors.Delete(key)
	return err
}

func newInspector(key inspectorKey) (*keptInspector, error) {
	log := slog.New(newLatestLog("shape_inspect"))
	opts := []inspect.Option{inspect.WithLogger(log), inspect.WithHosts(strings.Fields(key.hosts)...)}
	if key.title != "" {
		opts = append(opts, inspect.WithTitle(key.title))
	}
	if key.control {
		opts = append(opts, inspect.WithControl(key.token))
	}
	all, _, err := cores.LoadOrNew(coreKey{}, func() (caddy.Destructor, error) { return newCore(log), nil })
	if err != nil {
		return nil, err
	}
	k := &keptInspector{all.(*core).With(opts...)}
	if err := k.Err(); err != nil {
		return nil, errors.Join(err, k.Destruct())
	}
	return k, nil
}

// Destruct implements [caddy.Destructor].
func (k *keptInspector) Destruct() error {
	_, err := cores.Delete(coreKey{})
	return err
}

// newCore returns an Inspector of all lines that are in use.
func newCore(log *slog.Logger) *core {
	c := &core{Inspector: inspect.New(inspect.WithLogger(log))}
	c.unfollow = follow(func(l shownLine) (hide func()) {
		c.Add(l.name, l.inspected())
		return func() { c.Remove(l.name) }
	})
	c.unreport = problems.show(c.Inspector)
	return c
}

// Destruct implements [caddy.Destructor].
func (c *core) Destruct() error {
	c.unreport()
	c.unfollow()
	return c.Close()
}

// serve answers a request. What is still streaming when serving ends, ends too.
func (k *keptInspector) serve(w http.ResponseWriter, r *http.Request, serving context.Context) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(serving, cancel)()
	k.ServeHTTP(w, r.WithContext(ctx))
}

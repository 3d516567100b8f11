package caddyshaper

import (
	"context"
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

// A keptInspector shows all lines that are in use, until no configuration wants it.
type keptInspector struct {
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
	i := inspect.New(opts...)
	if err := i.Err(); err != nil {
		return nil, err
	}
	k := &keptInspector{Inspector: i}
	k.unfollow = follow(func(l shownLine) (hide func()) {
		i.Add(l.name, l.inspected())
		return func() { i.Remove(l.name) }
	})
	k.unreport = problems.show(i)
	return k, nil
}

// Destruct implements [caddy.Destructor].
func (k *keptInspector) Destruct() error {
	k.unreport()
	k.unfollow()
	return k.Close()
}

// serve answers a request. What is still streaming when serving ends, ends too.
func (k *keptInspector) serve(w http.ResponseWriter, r *http.Request, serving context.Context) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(serving, cancel)()
	k.ServeHTTP(w, r.WithContext(ctx))
}

package otelshaper

import (
	"context"
	"fmt"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// Observe reports a source from now on. rule is the value of the attribute shaper.rule: which
// limits these are, such as "login", and never a key, because a backend keeps a time series for
// each value. If it is empty there is no such attribute.
//
// At each collection the source is asked once for its Stats; nothing happens in between.
// Unregister of what Observe returns takes the source away again.
//
// Observe returns an error if there is no source, if rule is that of another source already,
// or if the provider refuses the callback.
func (i *Instruments) Observe(rule string, source Source) (metric.Registration, error) {
	if source == nil {
		return nil, fmt.Errorf("otelshaper: the source of rule %q is nil", rule)
	}
	if !i.take(rule) {
		return nil, fmt.Errorf("otelshaper: a source of rule %q is observed already", rule)
	}
	var all []metric.Observable
	for _, made := range i.ints {
		all = append(all, made)
	}
	for _, made := range i.floats {
		all = append(all, made)
	}
	registered, err := i.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		i.tell(o, rule, source.read())
		return nil
	}, all...)
	if err != nil {
		i.release(rule)
		return nil, err
	}
	return &registration{Registration: registered, release: sync.OnceFunc(func() { i.release(rule) })}, nil
}

// A registration is one of the provider's that frees its rule as well.
type registration struct {
	metric.Registration
	release func()
}

// Unregister takes the source away. It may be called several times.
func (r *registration) Unregister() error {
	defer r.release()
	return r.Registration.Unregister()
}

// take reserves a rule, and reports whether it was free.
func (i *Instruments) take(rule string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.observed[rule] {
		return false
	}
	i.observed[rule] = true
	return true
}

func (i *Instruments) release(rule string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.observed, rule)
}

// tell gives all observations of a source to a collection.
func (i *Instruments) tell(o metric.Observer, rule string, r *reading) {
	with := func(more []attribute.KeyValue) metric.ObserveOption {
		return metric.WithAttributeSet(attribute.NewSet(ruleAttributes(rule, more...)...))
	}
	for k, f := range intFamilies {
		f.sample(r, func(v int64, more ...attribute.KeyValue) { o.ObserveInt64(i.ints[k], v, with(more)) })
	}
	for k, f := range floatFamilies {
		f.sample(r, func(v float64, more ...attribute.KeyValue) { o.ObserveFloat64(i.floats[k], v, with(more)) })
	}
}

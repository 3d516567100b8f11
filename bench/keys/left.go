package keys

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
)

type leftInput struct {
	Limiter string
	Keys    int
	Drains  time.Duration // of each bucket, after its call
}

// A leftFound is what keys take while their buckets are not drained, and what is
// left of that later, in bytes per key.
type leftFound struct {
	Full float64 `unit:"full-B/key"`
	Left float64 `unit:"left-B/key"`
}

// leftAfter is how long after the draining nothing is to be left.
const leftAfter = 2 * time.Second

var leftChild = run.NewMeasurement("keys-left", left)

// left lets all keys come once and waits. Before it looks, one more key comes, for
// those that tidy up when they are called.
func left(in leftInput) (leftFound, error) {
	before := measure.LiveHeap()
	k := rivals.KeyedNamed(in.Limiter).Open(context.Background(), in.Keys, rivals.Bucket{Every: in.Drains, Burst: 1})
	defer k.Stop()
	if err := comeOnce(k, 0, in.Keys); err != nil {
		return leftFound{}, err
	}
	drained := time.Now().Add(in.Drains)
	perKey := func() float64 { return float64(measure.LiveHeap()-before) / float64(in.Keys) }
	found := leftFound{Full: perKey()}
	time.Sleep(time.Until(drained.Add(leftAfter)))
	call := k.Each[0]()
	if !call("one more") {
		return leftFound{}, errors.New("the last key may not leave")
	}
	found.Left = perKey()
	runtime.KeepAlive(call) // Otherwise a collection would take it, keys and all.
	return found, nil
}

// leftCases are measured at the same time: they do nothing for most of it, and time
// is not what is measured.
func leftCases(o run.Options) (all []run.Case[leftInput]) {
	keys, drains := manyKeys, 2*time.Second
	if o.Quick {
		keys, drains = manyKeys/4, 500*time.Millisecond
	}
	for _, c := range rivals.AllKeyed {
		if c.Name != rivals.OursDrained && c.Name != rivals.BareMap {
			all = append(all, run.Case[leftInput]{
				Name:  fmt.Sprintf("KeysLeft/limiter=%s/keys=%d", c.Name, keys),
				Input: leftInput{c.Name, keys, drains}, Rounds: 1, Estimate: drains + leftAfter + time.Second,
			})
		}
	}
	return all
}

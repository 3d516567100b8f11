package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"
)

// A keysLeftResult is what keys take while their buckets are not drained, and what
// is left of that later, in bytes per key.
type keysLeftResult struct {
	Contestant string  `json:"contestant"`
	Keys       int     `json:"keys"`
	Full       float64 `json:"bytes_per_key"`
	Left       float64 `json:"bytes_per_key_2s_after_draining"`
}

type keysLeftInput struct {
	Contestant string
	Keys       int
	Drains     time.Duration // of each bucket, after its call
	After      time.Duration // how long after the last has drained to look
}

// leftAfter is how long after the draining nothing is to be left.
const leftAfter = 2 * time.Second

// keysLeftCell lets all keys come once and waits. Before it looks, one more key
// comes, for those that tidy up when they are called.
func keysLeftCell(in keysLeftInput) (keysLeftResult, error) {
	c, err := keyedContestantNamed(in.Contestant)
	if err != nil {
		return keysLeftResult{}, err
	}
	before := liveHeap()
	k, err := c.open(context.Background(), in.Keys, keyedBucket{every: in.Drains, burst: 1})
	if err != nil {
		return keysLeftResult{}, err
	}
	defer k.stop()
	if err := keysCome(k, 0, in.Keys); err != nil {
		return keysLeftResult{}, err
	}
	drained := time.Now().Add(in.Drains)
	perKey := func() float64 { return float64(liveHeap()-before) / float64(in.Keys) }
	r := keysLeftResult{Contestant: c.name, Keys: in.Keys, Full: perKey()}
	time.Sleep(time.Until(drained.Add(in.After)))
	call := k.each[0]()
	if !call("one more") {
		return keysLeftResult{}, errors.New("the last key may not leave")
	}
	r.Left = perKey()
	runtime.KeepAlive(call) // Or a collection would take it, keys and all.
	return r, nil
}

// keysLeftInputs are all contestants with many keys, and we with a million.
func keysLeftInputs(o options) [][]keysLeftInput {
	keys, drains := manyKeys, 2*time.Second
	if o.quick {
		keys, drains = manyKeys/4, 500*time.Millisecond
	}
	var all []keysLeftInput
	for _, c := range keyedContestants {
		if c.name != oursDrained && c.name != bareMap {
			all = append(all, keysLeftInput{c.name, keys, drains, leftAfter})
		}
	}
	if o.quick {
		return [][]keysLeftInput{all}
	}
	// The first must not have drained before the last has come.
	return [][]keysLeftInput{all, {{oursKeyed, 1_000_000, 8 * time.Second, leftAfter}}}
}

// measureKeysLeft measures the contestants of one number of keys at the same time:
// they do nothing most of it, and time is not what is measured.
func measureKeysLeft(ctx context.Context, o options) ([]keysLeftResult, error) {
	var results []keysLeftResult
	for _, inputs := range keysLeftInputs(o) {
		o.say("what is left of %s", counted(inputs[0].Keys, "key"))
		found, errs := make([]keysLeftResult, len(inputs)), make([]error, len(inputs))
		var cells sync.WaitGroup
		for i, in := range inputs {
			cells.Go(func() { errs[i] = measureCell(ctx, "keys-left", in, &found[i]) })
		}
		cells.Wait()
		if err := errors.Join(errs...); err != nil {
			return nil, err
		}
		results = append(results, found...)
	}
	return results, nil
}

func keysLeftTable(results []keysLeftResult) table {
	t := table{
		Title: "Memory: what is left of keys that nobody uses any more",
		Note: fmt.Sprintf("Bytes per key of the live heap: while the buckets are not drained, and %v after the last of them is, when one other key has come, "+
			"for those that tidy up when they are called. sethvargo sweeps as often and as soon as its buckets allow.", leftAfter),
		Columns: []string{"contestant", "keys", "not drained", "left"},
	}
	for _, r := range results {
		t.Rows = append(t.Rows, []string{r.Contestant, grouped(r.Keys), fmt.Sprintf("%.0f", r.Full), fmt.Sprintf("%.1f", r.Left)})
	}
	return t
}

// keysLeftGoal looks at every number of keys. What a process allocates by itself is
// below a byte for each of so many.
func keysLeftGoal(results []keysLeftResult) goal {
	g := goal{What: fmt.Sprintf("bytes per key left %v after draining", leftAfter), Want: "0 (less than 1)", Got: "not measured"}
	for _, r := range results {
		if r.Contestant == oursKeyed && (g.Got == "not measured" || g.Reached) {
			g.Got, g.Reached = fmt.Sprintf("%.2f, of %s", r.Left, counted(r.Keys, "key")), r.Left < 1
		}
	}
	return g
}

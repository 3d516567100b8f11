package proxies

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.com/leakybucket/bench/internal/measure"
)

// A waitingInput is requests that all wait at once, as far as files allow.
type waitingInput struct {
	Proxy    string
	Requests int
}

// A waiting is the memory that the processes of a proxy have resident. What the kernel
// needs for their connections does not count.
type waiting struct {
	AtRest     float64 `unit:"rest-MiB"`
	PerRequest float64 `unit:"KiB/request"` // beyond that; unknown if none waits in the proxy
	Requests   float64 `unit:"requests"`
}

// requestsFor returns how many requests can wait at once in a rival, of so many.
func requestsFor(r rival, wanted, files int) int {
	switch r.limit {
	case bySessions:
		return 0 // They wait in the kernel.
	case unlimited:
		files /= 2 // Each is at the upstream too, which is this process.
	}
	return min(wanted, files-2*fewMore)
}

// measureWaiting lets requests wait in a proxy.
func (p *programs) measureWaiting(ctx context.Context, in waitingInput) (waiting, error) {
	const slow = 1 // per second
	n := requestsFor(named(in.Proxy), in.Requests, p.files)
	s, err := p.stage(ctx, in.Proxy, slow, n+fewMore, true)
	if err != nil {
		return waiting{}, err
	}
	defer s.close()
	sleep(ctx, settling) // Workers start after the first process listens.
	before, err := s.usage()
	if err != nil || n == 0 {
		return waiting{before.resident / (1 << 20), measure.Unknown, 0}, err
	}
	w, err := gather(ctx, s.address, n, 0)
	if err != nil {
		return waiting{}, errors.Join(err, context.Cause(ctx))
	}
	defer w.close()
	after, err := s.settled(ctx, n)
	if err != nil {
		return waiting{}, err
	}
	if len(w.responses) > 0 {
		r := <-w.responses
		return waiting{}, errors.Join(fmt.Errorf("request %d did not wait: status %d", r.number, r.status), r.err)
	}
	more := after.resident - before.resident
	return waiting{before.resident / (1 << 20), more / (1 << 10) / float64(n), float64(n)}, nil
}

// settled returns what the process uses as soon as it has accepted so many connections
// and has needed no more memory for a while.
func (p *process) settled(ctx context.Context, connections int) (usage, error) {
	const while = 500 * time.Millisecond
	most, since := 0.0, time.Now()
	for began := time.Now(); ; sleep(ctx, while/10) {
		now, err := p.usage()
		switch {
		case err != nil:
			return now, err
		case ctx.Err() != nil:
			return now, context.Cause(ctx)
		case now.files < connections || now.resident > most*1.002:
			most, since = max(most, now.resident), time.Now()
		case time.Since(since) > while:
			return now, nil
		}
		if time.Since(began) > patienceForMemory {
			return now, fmt.Errorf("after %v the proxy has %d files open, of %d connections, and %.0f MiB of memory",
				patienceForMemory, now.files, connections, now.resident/(1<<20))
		}
	}
}

const patienceForMemory = time.Minute

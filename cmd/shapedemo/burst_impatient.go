package main

import (
	"bufio"
	"context"
	"math"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"time"
)

// The least and the largest part of its predicted wait after which a vanisher
// leaves. If half of the line leaves, the other half moves up, and whoever
// stayed longer than half of his time would be served before he leaves.
const (
	leastPatience = 0.10
	mostPatience  = 0.40
)

// A vanisher is an impatient client of the burst: if it has to wait, it closes
// its connection before its turn. A client can't know where it stands, so the
// shaper's hooks tell it, lest any leave who would not have had to wait.
//
// All its methods may be called from any goroutine, and on a nil vanisher, which
// is a patient client.
type vanisher struct {
	log      *logbook      // of the proxy that it asks
	upload   bool          // it sends a body, which nobody reads before its turn
	perPlace time.Duration // how long it waits for each place it has in front of it, its own included

	mu       sync.Mutex
	conn     net.Conn
	timer    *time.Timer // nil: it does not wait
	vanished time.Time   // zero: it has not
}

// vanishersOf makes percent of n clients vanishers, evenly spread over them, of
// various patience. Every second one uploads: its departure net/http does not
// see by itself.
func vanishersOf(n, percent int, m meaning, log *logbook) map[int]*vanisher {
	const steps = 7 // odd, so that uploads and others are as patient
	chosen := map[int]*vanisher{}
	for i := range n {
		if (i+1)*percent/100 == i*percent/100 {
			continue
		}
		k := len(chosen)
		patience := leastPatience + (mostPatience-leastPatience)*float64(3*k%steps)/(steps-1)
		chosen[i] = &vanisher{log: log, upload: k%2 == 1, perPlace: time.Duration(patience * m.every * float64(time.Second))}
	}
	return chosen
}

// ask sends a request on a connection of its own, and reads the answer, unless
// it vanishes before.
func (v *vanisher) ask(ctx context.Context, target string) answer {
	r, err := v.request(ctx, target)
	if err != nil {
		return answer{}
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", r.URL.Host)
	if err != nil {
		return answer{}
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	v.mu.Lock()
	v.conn = conn
	v.mu.Unlock()
	v.log.expect(conn.LocalAddr().String(), v)
	defer v.stay()
	if err := r.Write(conn); err != nil {
		return answer{}
	}
	got := read(http.ReadResponse(bufio.NewReader(conn), r))
	if !v.goneAt().IsZero() {
		return answer{vanished: true}
	}
	return got
}

func (v *vanisher) request(ctx context.Context, target string) (*http.Request, error) {
	if !v.upload {
		return http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, target, strings.NewReader("a body that is read by nobody before its turn\n"))
	if err == nil && runtime.GOOS == "linux" {
		// Of unknown length, so that the body is not read ahead, and only
		// shaper.ConnContext can tell that the client has gone. It does so on
		// Linux; elsewhere it is as well that the body is read ahead.
		r.ContentLength = -1
	}
	return r, err
}

// queued tells a client that it has entered the line, with that many in it.
func (v *vanisher) queued(waiting int) {
	if v == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	patience := min(float64(v.perPlace)*float64(waiting), math.MaxInt64/2)
	v.timer = time.AfterFunc(time.Duration(patience), v.vanish)
}

// stay tells a client that it has nothing to wait for any more.
func (v *vanisher) stay() {
	if v == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.timer != nil {
		v.timer.Stop()
		v.timer = nil
	}
}

// vanish closes the connection of a client that still waits.
func (v *vanisher) vanish() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.timer == nil {
		return // Its turn came when the timer had fired already.
	}
	v.vanished = time.Now() // Before anybody can have noticed.
	_ = v.conn.Close()
}

// goneAt is when the client vanished, or zero.
func (v *vanisher) goneAt() time.Time {
	if v == nil {
		return time.Time{}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.vanished
}

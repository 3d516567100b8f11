package main

import (
	"context"
	"io"
)

// An interruptible is standard input that ends when a context does, so that Ctrl-C shows
// what was counted so far even while nothing comes.
type interruptible struct {
	ctx    context.Context
	from   io.Reader
	chunks chan chunk // nil: nothing has been read yet
	free   chan []byte
	rest   []byte // of the chunk that was read last
	last   chunk
}

// A chunk is what one reading gave.
type chunk struct {
	buffer []byte
	n      int
	err    error
}

func newInterruptible(ctx context.Context, from io.Reader) *interruptible {
	return &interruptible{ctx: ctx, from: from}
}

// begin starts the goroutine that reads. It ends with the input; if the context ends
// before, it may wait in a reading for as long as the program runs.
func (r *interruptible) begin() {
	const size = 64 << 10
	// Two buffers: one is read into while the other is used.
	r.chunks, r.free = make(chan chunk), make(chan []byte, 2)
	r.free <- make([]byte, size)
	r.free <- make([]byte, size)
	go func() {
		for {
			var buffer []byte
			select {
			case buffer = <-r.free:
			case <-r.ctx.Done():
				return
			}
			n, err := r.from.Read(buffer)
			select {
			case r.chunks <- chunk{buffer, n, err}:
			case <-r.ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
}

// Read implements [io.Reader].
func (r *interruptible) Read(p []byte) (int, error) {
	if r.chunks == nil {
		r.begin()
	}
	for len(r.rest) == 0 {
		if r.last.err != nil {
			return 0, r.last.err
		}
		if r.last.buffer != nil {
			r.free <- r.last.buffer // There is room for both buffers.
			r.last.buffer = nil
		}
		select {
		case r.last = <-r.chunks:
			r.rest = r.last.buffer[:r.last.n]
		case <-r.ctx.Done():
			r.last.err = io.EOF
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

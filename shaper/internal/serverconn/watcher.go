package serverconn

import (
	"sync"
	"time"
)

// A Watcher looks at connections that net/http does not watch: connections of requests that wait
// with an unread body. One goroutine looks at all of them, one after the other, so that it takes
// one processor at most: each look takes 11 to 22 µs, and with more than some 10,000 connections
// it comes to each of them less often than watchEvery says. It looks only while there are such
// requests. (A timer for each took 170 bytes, and when many came at the same time there was a
// goroutine for each as well.)
//
// The zero Watcher is ready for use.
type Watcher struct {
	mu sync.Mutex
	// The list is in the order of lookAt: each connection is looked at after the same time.
	head, tail *Conn
	// timer runs look. It is nil if the list is empty, and then a new one is made: in a
	// synctest bubble, one that was made outside can't be used.
	timer   *time.Timer
	looking bool // look runs
}

// add puts a connection into the list.
func (w *Watcher) add(c *Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pushLocked(c)
	if w.timer == nil && !w.looking {
		w.armLocked(watchEvery)
	}
}

// remove takes a connection out of the list, if it is there.
func (w *Watcher) remove(c *Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.wait.lookAt == 0 {
		return
	}
	w.unlinkLocked(c)
	w.restLocked()
}

// look looks at all connections whose time has come.
func (w *Watcher) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.looking {
		return // The timer was stopped too late.
	}
	w.looking = true
	for c := w.head; c != nil; c = w.head {
		if d := c.wait.lookAt - sinceStart(); d > 0 {
			w.armLocked(d)
			break
		}
		w.unlinkLocked(c)
		w.pushLocked(c)
		w.mu.Unlock()
		gone := (*peerContext)(c).Err() != nil
		w.mu.Lock()
		if gone && c.wait.lookAt != 0 {
			w.unlinkLocked(c)
		}
	}
	w.looking = false
	w.restLocked()
}

// restLocked stops the timer if the list is empty.
func (w *Watcher) restLocked() {
	if w.head == nil && w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
}

// armLocked sets the timer.
func (w *Watcher) armLocked(d time.Duration) {
	if w.timer == nil {
		w.timer = time.AfterFunc(d, w.look)
		return
	}
	w.timer.Reset(d)
}

// pushLocked puts a connection that is not in the list at its end.
func (w *Watcher) pushLocked(c *Conn) {
	c.wait.lookAt = sinceStart() + watchEvery
	if c.wait.prev = w.tail; w.tail == nil {
		w.head = c
	} else {
		w.tail.wait.next = c
	}
	w.tail = c
}

// unlinkLocked takes a connection out of the list.
func (w *Watcher) unlinkLocked(c *Conn) {
	prev, next := c.wait.prev, c.wait.next
	if prev == nil {
		w.head = next
	} else {
		prev.wait.next = next
	}
	if next == nil {
		w.tail = prev
	} else {
		next.wait.prev = prev
	}
	c.wait.prev, c.wait.next, c.wait.lookAt = nil, nil, 0
}

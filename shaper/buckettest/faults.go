package buckettest

import (
	"errors"
	"time"

	"example.com/leakybucket/shaper/shared"
)

// A Fault is the mishap of one call of a [Memory].
type Fault int

const (
	// NoFault lets the call succeed.
	NoFault Fault = iota

	// LoseRequest loses the request: nothing is done, and the call returns when its
	// context ends. In that time nothing answers, so a context without an end hangs.
	LoseRequest

	// LoseReply loses the answer: the step is carried out, and the call returns when its
	// context ends.
	LoseReply

	// FailBefore makes the call return [ErrFault] at once. Nothing is done.
	FailBefore

	// FailAfter makes the call return [ErrFault] after the step has been carried out.
	FailAfter
)

// ErrFault is the error of [FailBefore] and [FailAfter].
var ErrFault = errors.New("buckettest: a fault that the test asked for")

// An Entry is a call of a [Memory], as [Memory.Log] returns it.
type Entry struct {
	Call int    // its number, from 1, in the order in which calls were made
	Op   string // "Take" or "GiveBack"
	Take shared.Take
	End  shared.Instant // of GiveBack

	Fault    Fault
	Sent     time.Time // when the call was made
	Returned time.Time // when it returned; zero if it has not yet
	Err      error     // the error that it returned

	// Done is whether the step has been carried out. Then Arrived is the reading of the
	// [Memory]'s clock in that step, Before and After are the level before and after it, and
	// Taken is the answer, which the caller may not have got.
	Done          bool
	Arrived       int64
	Before, After shared.BucketLevel
	Taken         shared.Taken
}

// SetDelay sets how long the requests and the answers of later calls travel.
func (m *Memory) SetDelay(request, reply time.Duration) {
	m.lock()
	defer m.mu.Unlock()
	m.request, m.reply = request, reply
}

// Fail sets a function which is asked for each later call what becomes of it. call is the
// number of the call, from 1, and op is "Take" or "GiveBack". The function may use the
// Memory, and is called by several goroutines at once if calls are. nil means that all
// calls succeed.
func (m *Memory) Fail(f func(call int, op string) Fault) {
	m.lock()
	defer m.mu.Unlock()
	m.fail = f
}

// Log returns all calls since the last [Memory.ClearLog], in the order in which they were made.
func (m *Memory) Log() []Entry {
	m.lock()
	defer m.mu.Unlock()
	entries := make([]Entry, len(m.log))
	for i, e := range m.log {
		entries[i] = *e
	}
	return entries
}

// ClearLog empties the log, which long tests would fill memory with. The numbers of calls
// go on.
func (m *Memory) ClearLog() {
	m.lock()
	defer m.mu.Unlock()
	m.log = nil
}

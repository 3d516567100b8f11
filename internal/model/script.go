package model

import (
	"fmt"
	"math"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// A Script is the story of one bucket: its first limits and a list of
// operations, whose instants never decrease. Requests that still wait at the end
// are refused by a Close.
type Script struct {
	Limits  shaper.Limits
	Fair    bool          // WithFairQueue is set, and calls have keys
	Bounded bool          // WithLineTimeout is set
	Timeout time.Duration // its argument
	DryRun  bool          // WithDryRun is set, beside Bounded
	Ops     []Op
}

// An Op is one operation of a script. Instants count from the start.
type Op struct {
	At   time.Duration
	Kind OpKind
	// Race means that the operation starts at the same time as all that is due at
	// its instant. Without Race, all that is due at its instant happens before it.
	Race bool

	N        int           // of a call that may wait, OpAllow, OpForecast, OpSettle: the cost; of OpAtMost: what may pass
	Deadline time.Duration // of a call that may wait, OpShutdown: of the context; 0: none
	Deaf     bool          // of a call that may wait: the context states its deadline, but does not end at it
	Late     time.Duration // of a call that may wait: from this instant on the context's Err returns an error, and Done stays open; 0: never
	Target   int           // of OpCancel, OpRelease, OpSettle: index of the call that ends; -1: none
	Key      string        // of a call that may wait, OpAllow, OpForecast in a fair script
	Weight   int           // of the key, as the weight function returns it during the operation
	Limits   shaper.Limits // of OpSet
	Hold     time.Duration // of OpHold
	Asked    time.Duration // of OpRetry: when the request asked for the first time
}

// An OpKind is the kind of an operation.
type OpKind int

const (
	OpWait OpKind = iota // WaitN
	OpAllow
	OpForecast
	OpLook     // Stats
	OpSet      // SetLimits
	OpCancel   // ends the context of a call
	OpClose    // Close
	OpShutdown // Shutdown
	OpAcquire
	OpRelease // calls what Acquire returned
	OpHold
	OpReserve
	OpSettle // calls what Reserve returned
	OpAtMost
	OpRetry // Acquire of a request that the upstream has refused; see Retrier
)

var kindNames = [...]string{
	"OpWait", "OpAllow", "OpForecast", "OpLook", "OpSet", "OpCancel", "OpClose", "OpShutdown",
	"OpAcquire", "OpRelease", "OpHold", "OpReserve", "OpSettle", "OpAtMost", "OpRetry",
}

// mayWait reports whether the operation is a call that can wait in the line.
func (o Op) mayWait() bool {
	return o.Kind == OpWait || o.Kind == OpAcquire || o.Kind == OpReserve || o.Kind == OpRetry
}

// hasTarget reports whether the operation is about another one.
func (o Op) hasTarget() bool {
	return o.Kind == OpCancel || o.Kind == OpRelease || o.Kind == OpSettle
}

// hasCost reports whether N is used.
func (o Op) hasCost() bool {
	return o.mayWait() || o.Kind == OpAllow || o.Kind == OpForecast || o.Kind == OpSettle || o.Kind == OpAtMost
}

// String returns the script as a Go literal, to be played again by a test.
func (s Script) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "model.Script{Limits: %s, Fair: %v, Bounded: %v, Timeout: %d, DryRun: %v, Ops: []model.Op{\n",
		literal(s.Limits), s.Fair, s.Bounded, int64(s.Timeout), s.DryRun)
	for _, o := range s.Ops {
		fmt.Fprintf(&b, "\t%s,\n", o.literal())
	}
	return b.String() + "}}"
}

func (o Op) literal() string {
	fields := []string{fmt.Sprintf("At: %d, Kind: model.%s", int64(o.At), kindNames[o.Kind])}
	note := func(shown bool, format string, value any) {
		if shown {
			fields = append(fields, fmt.Sprintf(format, value))
		}
	}
	note(o.Race, "Race: %v", o.Race)
	note(o.hasCost(), "N: %d", o.N)
	note(o.Deadline != 0, "Deadline: %d", int64(o.Deadline))
	note(o.Deaf, "Deaf: %v", o.Deaf)
	note(o.Late != 0, "Late: %d", int64(o.Late))
	note(o.hasTarget(), "Target: %d", o.Target)
	note(o.Key != "", "Key: %q", o.Key)
	note(o.Weight != 0, "Weight: %d", o.Weight)
	note(o.Kind == OpSet, "Limits: %s", literal(o.Limits))
	note(o.Kind == OpHold, "Hold: %d", int64(o.Hold))
	note(o.Kind == OpRetry, "Asked: %d", int64(o.Asked))
	return "{" + strings.Join(fields, ", ") + "}"
}

func literal(l shaper.Limits) string {
	r := fmt.Sprintf("%v", float64(l.Rate))
	switch {
	case l.Rate == rate.Inf:
		r = "rate.Inf"
	case math.IsNaN(float64(l.Rate)):
		r = "rate.Limit(math.NaN())"
	}
	return fmt.Sprintf("shaper.Limits{Rate: %s, Burst: %d, Depth: %d, MaxWait: %d, InFlight: %d}",
		r, l.Burst, l.Depth, int64(l.MaxWait), l.InFlight)
}

// Without returns the script without operation i.
func (s Script) Without(i int) Script {
	rest := s
	rest.Ops = nil
	for j, o := range s.Ops {
		if j == i {
			continue
		}
		if o.hasTarget() && o.Target == i {
			o.Target = -1
		} else if o.hasTarget() && o.Target > i {
			o.Target--
		}
		rest.Ops = append(rest.Ops, o)
	}
	return rest
}

// Predict returns the answer of each operation by a model that makes a mistake, or
// [NoMistake]. If open is not empty, it is the reason why the guarantees allow other
// answers as well, and the answers must not be compared.
func (s Script) Predict(with Mistake) (answers []Answer, open string) {
	m := newSimulator(s, with)
	for i := range s.Ops {
		m.do(&s.Ops[i])
	}
	m.end()
	return m.answers, m.open
}

// end closes the bucket if anything still waits.
func (m *simulator) end() {
	if len(m.line) > 0 {
		m.close()
	}
}

package model

import (
	"fmt"
	"math"
	"time"
)

// A Mistake is a fault that a model can commit on purpose, so that a test can check that the
// comparison with an engine notices it.
type Mistake int

const (
	NoMistake        Mistake = iota
	RefundWithLine           // a waiter that gives up lowers the level, though it never left
	NoRetime                 // SetLimits leaves the head the instant it had
	IdleTick                 // an idle bucket keeps a tick, as time.Ticker's channel does
	PlaceFreedLate           // a waiter that gives up keeps its place until the next departure
	DepthOffByOne            // Depth + 1 may wait
	Overtaking               // a newcomer slips past a line whose head costs more
	DroppedRemainder         // the schedule goes on from the whole nanosecond
	LateStillLeft            // a late cancel keeps its slot, which is lost
	CloseFirst               // Close refuses the request that is due at its instant
	HandedTwice              // the slot of a late cancel goes to the next waiter and to the bucket
	FreedTwice               // the second release of a seat frees the seat of another request
	CapIgnored               // when a late cancel hands its seat on, all requests leave that the level allows
	SeatLost                 // a late cancel keeps its seat, which is never released
	BlockedIsLate            // a request that waited for a seat leaves as if at the instant at which the bucket allowed it
	HoldShortens             // of two holds the last one counts
	HoldUnbounded            // MaxWait does not count the hold
	NaiveRefund              // settle gives back all that the level has
	DrainedRefund            // settle gives back what has drained, as only the level before reservations is noted
	StaleRefund              // settle gives back what an earlier settle has given back, as the levels since then are not lowered
	SettleNotRetimed         // settle leaves the head the instant it had
	ChargeForgotten          // settle charges nothing
	SettledTwice             // the second settle counts, too
	UnknownIsZero            // a cost that is not known counts as 0

	StartTags        // of all keys the one leaves next that has paid least so far
	TiesByArrival    // of equal tags the request leaves first that came first
	IdleRemembered   // a key that comes begins with what it has paid before
	TagsNotShifted   // when a request gives up, those behind it keep their tags
	TurnNotGivenBack // a key pays for a slot that is handed on
	NewestPushedOut  // if the line is full, the newest of all is pushed out
	NewcomerRefused  // if the line is full, the newcomer is refused
	WeightInverted   // a key of a great weight pays more
	HeadPushedLate   // if the head is pushed out, the next one counts as late

	BoundFirst          // a bound comes before the departure of its instant
	BoundMoves          // a change of the limits changes the bounds of those in line
	BoundIgnoredAtEntry // a request enters that would leave after its bound
	HoldDoomsNobody     // a request whose bound comes in a hold waits for its bound
	HoldDoomsAtItsEnd   // a hold that ends at a bound refuses at once
	RetryAtOnce         // whoever has waited too long may come back before anybody has left
	ShadowsStay         // in a dry run a shadow stays in line beyond its bound
	RetryBoundAnew      // the bound of a request that is sent again counts from when it enters again

	FirstDecides       // the further levels keep no head
	ZeroAsks           // a level at which a request costs nothing keeps it
	RaisedWhenDue      // each level is raised when it would have let the request leave
	TurnOfTheFirst     // a turn costs what it costs at the first level
	GivesBackAllOrNone // a late cancel gives back nothing at any level if another has left since
	GivesBackTheFirst  // a late cancel gives back at the first level only
	HeadNotAwaited     // a request is predicted to leave before the head
	IdleLevelsAwaited  // a level at which a request costs nothing counts in its prediction
	MissingIsZero      // an actual cost that is missing counts as 0
	ChargesTheFirst    // settle charges the first level only
	ReturnsWhatIsLeft  // a level with Returns gives back no more than another
	ReturnsAnyway      // a level without Returns gives back what has drained
	SetMetersEmpties   // SetMeters begins with empty levels
	RestoresTheFirst   // a snapshot has the first level only

	ofFair, ofBounds, ofMeters = StartTags, BoundFirst, FirstDecides
)

var mistakes = [...]string{
	RefundWithLine:   "refund on cancel with a line",
	NoRetime:         "no re-time in SetLimits",
	IdleTick:         "a tick kept after idle",
	PlaceFreedLate:   "a place freed late",
	DepthOffByOne:    "off by one at Depth",
	Overtaking:       "a newcomer that overtakes",
	DroppedRemainder: "a dropped remainder",
	LateStillLeft:    "a late cancel that still counts as left",
	CloseFirst:       "Close before a due departure",
	HandedTwice:      "a slot handed on twice",
	FreedTwice:       "a seat freed twice",
	CapIgnored:       "a cap ignored when a seat is handed on",
	SeatLost:         "a seat lost by a late cancel",
	BlockedIsLate:    "time blocked that is made up",
	HoldShortens:     "a hold that shortens another",
	HoldUnbounded:    "a hold that MaxWait ignores",
	NaiveRefund:      "a refund of the whole difference",
	DrainedRefund:    "a refund of what has drained",
	StaleRefund:      "a refund that lowers no level of the past",
	SettleNotRetimed: "no re-time in settle",
	ChargeForgotten:  "a charge that is forgotten",
	SettledTwice:     "a request settled twice",
	UnknownIsZero:    "an unknown cost that counts as 0",

	StartTags:        "start tags",
	TiesByArrival:    "ties by arrival",
	IdleRemembered:   "a key that is remembered while it is idle",
	TagsNotShifted:   "tags that are not shifted",
	TurnNotGivenBack: "a turn that is not given back",
	NewestPushedOut:  "the newest of all pushed out",
	NewcomerRefused:  "a newcomer that is always refused",
	WeightInverted:   "an inverted weight",
	HeadPushedLate:   "a head pushed out that leaves the next one late",

	BoundFirst:          "a bound before a departure",
	BoundMoves:          "a bound that moves",
	BoundIgnoredAtEntry: "a bound that no prediction is compared with",
	HoldDoomsNobody:     "a hold that refuses nobody",
	HoldDoomsAtItsEnd:   "a hold that refuses at its end",
	RetryAtOnce:         "a return before the next departure",
	ShadowsStay:         "a shadow without a bound",
	RetryBoundAnew:      "a retry with a new bound",

	FirstDecides:       "a first level that decides alone",
	ZeroAsks:           "a level that is asked for nothing",
	RaisedWhenDue:      "levels that are raised one after the other",
	TurnOfTheFirst:     "a turn that costs the first level",
	GivesBackAllOrNone: "levels that give back together",
	GivesBackTheFirst:  "a first level that gives back alone",
	HeadNotAwaited:     "a prediction that passes the head",
	IdleLevelsAwaited:  "a prediction by all levels",
	MissingIsZero:      "a missing cost that counts as 0",
	ChargesTheFirst:    "a charge at the first level only",
	ReturnsWhatIsLeft:  "a level that returns too little",
	ReturnsAnyway:      "a level that returns too much",
	SetMetersEmpties:   "meters that are empty after a change",
	RestoresTheFirst:   "a first level that is restored alone",
}

// String returns the mistake in a few words.
func (m Mistake) String() string { return mistakes[m] }

// IsOfFair reports whether the mistake shows in fair scripts only.
func (m Mistake) IsOfFair() bool { return m >= ofFair && m < ofBounds }

// IsOfBounds reports whether the mistake shows in scripts with bounds only.
func (m Mistake) IsOfBounds() bool { return m >= ofBounds && m < ofMeters }

// IsOfMeters reports whether the mistake shows in scripts with meters only.
func (m Mistake) IsOfMeters() bool { return m >= ofMeters }

// Mistakes returns all mistakes that a model can make.
func Mistakes() (all []Mistake) {
	for m := NoMistake + 1; int(m) < len(mistakes); m++ {
		all = append(all, m)
	}
	return all
}

// An Answer is all that can be seen of one operation. Instants count from the
// start of the script.
type Answer struct {
	Returned       bool
	At             time.Duration // the instant of the return
	Result         string
	Retry          time.Duration // RetryAfter of a refusal
	Missed         bool          // the refusal is context.DeadlineExceeded too
	Wait           time.Duration // the result of Forecast
	Entered, Ended Event
	Look           Look

	// Estimated is set only by the model: it means that Retry and Wait are estimates
	// of when a seat becomes free.
	Estimated bool
	// Settled is set only by the model: by how much a call has changed the figures of Totals.
	Settled Figures
}

// Figures are the figures of Stats about reservations.
type Figures struct {
	Reserved                      int
	GivenBack, Charged, Forfeited uint64
}

// An Event is one call of a hook.
type Event struct {
	Hook          string
	At, Waited    time.Duration
	Cost, Waiting int
	Err           string
	Retry         time.Duration
}

// A Look is the result of Stats.
type Look struct {
	Waiting      int
	InFlight     int
	Level        float64
	Oldest, Last time.Duration
	Held         time.Duration // the end of the hold; -1: there is none
	Totals       Totals        // zero for a look that races with departures
	Meters       [2]MeterLook
}

// A MeterLook is the state of a meter.
type MeterLook struct {
	Level float64
	Figures
}

// Totals are the counts of a Look.
type Totals struct {
	Departed, Abandoned                    uint64
	QueueFull, TooLate, TooCostly, Refused uint64
	Closed                                 uint64
	Wait                                   time.Duration
	Figures
}

// Results of an operation.
const (
	Left      = "left" // also of Shutdown, Close and SetLimits: no error
	Negative  = "negative cost"
	Closed    = "closed"
	TooCostly = "too costly"
	QueueFull = "queue full"
	TooLate   = "too late"
	Invalid   = "invalid limits"
	Misused   = "use Acquire" // of WaitN and AllowN with a cap

	Canceled = "context canceled"
	Exceeded = "context deadline exceeded"
	Gone     = "gone" // the error of a context that ends by Op.Late
)

// Names of hooks in an Event.
const (
	HookEnqueued  = "enqueued"
	HookDeparted  = "departed"
	HookRefused   = "refused"
	HookAbandoned = "abandoned"
)

// String returns the answer in one line, with durations in nanoseconds.
func (a Answer) String() string {
	if !a.Returned {
		return "never returned"
	}
	text := fmt.Sprintf("%s at %d", a.Result, int64(a.At))
	if a.Retry != 0 {
		text += fmt.Sprintf(", retry %d", int64(a.Retry))
	}
	if a.Missed {
		text += ", deadline missed"
	}
	if a.Wait != 0 {
		text += fmt.Sprintf(", wait %d", int64(a.Wait))
	}
	for _, e := range []Event{a.Entered, a.Ended} {
		if e.Hook != "" {
			text += fmt.Sprintf("; %s at %d after %d, cost %d, waiting %d, error %q, retry %d",
				e.Hook, int64(e.At), int64(e.Waited), e.Cost, e.Waiting, e.Err, int64(e.Retry))
		}
	}
	if a.Look != (Look{}) {
		text += fmt.Sprintf("; looks %+v", a.Look)
	}
	return text
}

// near makes a level the one of the model, if it is as near as a float is.
func near(level *float64, want float64) {
	if math.Abs(*level-want) <= 1e-9*max(1, want) {
		*level = want
	}
}

// Difference returns where got, the answers of an engine to s, first differs from
// want, the answers of the model; "" if they are equal. Levels are compared as floats,
// with a tolerance. RetryAfters beyond 100 years count as equal: they are sums that
// saturate, which no guarantee states to the nanosecond.
func Difference(s Script, got, want []Answer) string {
	for i := range want {
		g, w := got[i], want[i]
		g.Estimated, g.Settled = w.Estimated, w.Settled
		for _, retry := range []*time.Duration{&g.Retry, &g.Ended.Retry, &w.Retry, &w.Ended.Retry} {
			*retry = min(*retry, 100*year)
		}
		near(&g.Look.Level, w.Look.Level)
		for i := range w.Look.Meters {
			near(&g.Look.Meters[i].Level, w.Look.Meters[i].Level)
		}
		if g != w {
			return fmt.Sprintf("operation %d %s\nengine: %v\nmodel:  %v", i, s.Ops[i].literal(), g, w)
		}
	}
	return ""
}

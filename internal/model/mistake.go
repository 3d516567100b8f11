package model

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

	ofFair, ofBounds = StartTags, BoundFirst
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
}

// String returns the mistake in a few words.
func (m Mistake) String() string { return mistakes[m] }

// IsOfFair reports whether the mistake shows in fair scripts only.
func (m Mistake) IsOfFair() bool { return m >= ofFair && m < ofBounds }

// IsOfBounds reports whether the mistake shows in scripts with bounds only.
func (m Mistake) IsOfBounds() bool { return m >= ofBounds }

// Mistakes returns all mistakes that a model can make.
func Mistakes() (all []Mistake) {
	for m := NoMistake + 1; int(m) < len(mistakes); m++ {
		all = append(all, m)
	}
	return all
}

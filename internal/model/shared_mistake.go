package model

// A SharedMistake is what an engine or a process of a [SharedRun] can do wrong on purpose,
// so that a test can check that it would be noticed.
type SharedMistake int

const (
	NoSharedMistake       SharedMistake = iota
	HighNotSent                         // a process doesn't say how far it knows the level to have been raised
	OldEpochKept                        // slots are kept though the engine's clock has stepped
	EpochForgets                        // a new epoch begins before the end of the slot used last
	LatenessUnchecked                   // a slot is used however late it is
	EarlyByUncertainty                  // the engine's clock is taken to be as far on as it may be when a slot is due
	LateByUncertainty                   // the engine's clock is taken to be as far back as it may be when a slot has passed
	TimedOutReplayed                    // a Take that timed out is sent again as it was
	GiveBackUnconditional               // the engine gives back though others have taken since
	GivenBackStillUsed                  // a process uses slots that it has given back
	OutstandingIgnored                  // after a change of the rate the engine forgets slots of the old rate
	FallbackAtOnce                      // the fallback begins before the last slot that was leased
	ClockBackNotShifted                 // the engine's clock goes back, and the level is then farther away
	ClockBackEmptied                    // the engine's clock goes back, and the level is then 0
	IdleTimeSaved                       // time in which no request leaves is saved up
	GuardForgotten                      // a level without a state is 0 at once
	SeenIgnored                         // an instant of before the clock went back counts
	NewestFirst                         // the slot goes to the request that came last
)

var sharedMistakes = [...]string{
	HighNotSent:           "High is not sent",
	OldEpochKept:          "an old epoch is kept",
	EpochForgets:          "a new epoch forgets the slot used last",
	LatenessUnchecked:     "lateness is unchecked",
	EarlyByUncertainty:    "early by the clock map's width",
	LateByUncertainty:     "late by the clock map's width",
	TimedOutReplayed:      "a timed-out Take is replayed",
	GiveBackUnconditional: "GiveBack without the comparison",
	GivenBackStillUsed:    "a slot given back and used",
	OutstandingIgnored:    "Rescale without the outstanding slots",
	FallbackAtOnce:        "a fallback that begins at once",
	ClockBackNotShifted:   "a clock gone back, the level not shifted",
	ClockBackEmptied:      "a clock gone back, the level emptied",
	IdleTimeSaved:         "idle time is saved up",
	GuardForgotten:        "no guard after the state was lost",
	SeenIgnored:           "High counts after the clock went back",
	NewestFirst:           "the newest leaves first",
}

// String returns the mistake in a few words.
func (m SharedMistake) String() string { return sharedMistakes[m] }

// Faults returns what must go wrong for the mistake to matter.
func (m SharedMistake) Faults() Faults {
	switch m {
	case HighNotSent, GuardForgotten:
		return FaultStateLost
	case OldEpochKept:
		return FaultClockForward | FaultClockBack
	case EpochForgets:
		return FaultClockForward
	case LatenessUnchecked, EarlyByUncertainty, LateByUncertainty:
		return FaultPause
	case TimedOutReplayed:
		return FaultLostReply
	case GiveBackUnconditional, GivenBackStillUsed:
		return FaultCancel
	case OutstandingIgnored:
		return FaultRateChange
	case FallbackAtOnce:
		return FaultOutage
	case ClockBackNotShifted, ClockBackEmptied, SeenIgnored:
		return FaultClockBack
	}
	return 0
}

// SharedMistakes returns all mistakes that a run can make.
func SharedMistakes() (all []SharedMistake) {
	for m := NoSharedMistake + 1; int(m) < len(sharedMistakes); m++ {
		all = append(all, m)
	}
	return all
}

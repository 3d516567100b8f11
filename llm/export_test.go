package llm

// What tests of this package may reach.
var (
	ReadAlong  = readAlong
	UntilReset = untilReset
	RetryAfter = retryAfter
)

// Kept is how much of a body, and of one event, is looked at.
const Kept = kept

package accesslog

// A Reason is why a line can't be used.
type Reason string

// The reasons.
const (
	TooLong    Reason = "longer than 1 MiB"
	NotFormat  Reason = "not in the format of the file"
	NoTime     Reason = "no time that can be read"
	NoRequest  Reason = "no request in it" // as of a client that has connected and sent nothing, or of other events in a JSON log
	BadStatus  Reason = "status is not a number from 0 to 999"
	OutOfOrder Reason = "earlier than a line before it, by more than is sorted"
	TookLong   Reason = "arrived earlier than is sorted, as it took so long"
)

// A Broken is a line that can't be used.
type Broken struct {
	File    string // as it was given to Open
	Line    int    // counted from 1
	Reason  Reason
	Excerpt string // the beginning of the line, at most 120 characters, with control characters escaped
}

// Stats count what a [Reader] has read so far.
type Stats struct {
	Lines    int // without empty ones
	Records  int // requests, returned or still being sorted
	Coarse   int // requests among them whose time is in whole seconds
	Ended    int // requests among them that are dated by their end, as the log has no duration
	Redacted int // values of header fields that the server has replaced by "REDACTED"; they count as not told

	Broken   map[Reason]int
	Examples []Broken // the first of each reason, in the order in which they were read
}

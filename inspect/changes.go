package inspect

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"example.com/leakybucket/shaper"
)

const (
	maxChanges = 20  // how many of the reports of changes a new reader gets
	maxPast    = 200 // how many changes are remembered that have ended
)

// A change is the report of a change that somebody has made through the control part, or of its
// end.
type change struct {
	At     time.Time  `json:"at"`
	Who    string     `json:"who"`
	What   string     `json:"what"` // in words
	Source string     `json:"source"`
	Key    string     `json:"key"`
	ID     string     `json:"id"`
	Until  *time.Time `json:"until"`  // nil: it does not end by itself, or has ended
	Change record     `json:"change"` // as it is then
}

// A record is a change from its beginning to its end. A copy of one does not change.
type record struct {
	Kind    string     `json:"kind"` // limits, hold or release
	Source  string     `json:"source"`
	Key     string     `json:"key"`
	ID      string     `json:"id"`
	Who     string     `json:"who"`
	From    time.Time  `json:"from"`
	Until   *time.Time `json:"until"`    // nil: of a release
	Limits  *string    `json:"limits"`   // nil: of a hold or a release
	Before  *string    `json:"before"`   // the limits that it has replaced; nil as limits
	Ended   *time.Time `json:"ended"`    // nil: it is in force
	EndedBy *string    `json:"ended_by"` // nil: nobody has ended it before its time
	Outcome *string    `json:"outcome"`  // how it has ended; nil: it is in force
	Error   *string    `json:"error"`    // why it could not be ended so far; nil: there was no such attempt

	earlier string // how the change has ended whose place it has taken, if not replaced
}

// The outcomes of changes.
const (
	putBack   = "put_back"  // the limits of before are in force again
	overtaken = "overtaken" // others had set or reset the limits meanwhile, and theirs stay
	replaced  = "replaced"  // by a later change of the same bucket
	over      = "ended"     // a hold has come to its end
	released  = "released"
	stuck     = "failed" // it could not be ended when the Inspector was closed, or the source removed
)

func newRecord(kind string, want command, until time.Time) record {
	from, of := want.from, want.of
	if from.IsZero() {
		from = time.Now()
	}
	return record{Kind: kind, Source: of.source.name, Key: strings.ToValidUTF8(of.key, "\uFFFD"), ID: idOf(of.key),
		Who: want.who, From: from.UTC(), Until: instant(until)}
}

// ended returns the record of the change once it has ended, before its time by somebody unless by
// is empty.
func (r record) ended(outcome, by string) record {
	now := time.Now().UTC()
	r.Ended, r.Outcome = &now, &outcome
	if by != "" {
		r.EndedBy = &by
	}
	return r
}

// An override is a change of limits in the form in which it is part of its bucket.
type override struct {
	From   time.Time  `json:"from"`
	Until  *time.Time `json:"until"`
	Who    string     `json:"who"`
	Before string     `json:"before"`
	Error  *string    `json:"error"`
}

// A ledger has the changes that are in force, the latest that have ended, and the reports of them.
// The lock of the [Inspector] guards it.
type ledger struct {
	told    []change // oldest first; at most maxChanges
	inForce map[changeKey]record
	past    []record // oldest first; at most maxPast
}

// add notes the report of the change of a key.
func (l *ledger) add(key changeKey, c change) {
	l.told = appendAtMost(maxChanges, l.told, c)
	earlier, ok := l.inForce[key]
	switch {
	case c.Change.Ended != nil:
		delete(l.inForce, key)
		l.past = appendAtMost(maxPast, l.past, c.Change)
		return
	case ok && earlier.Until != c.Change.Until: // Each change has its own; two may be made at one instant.
		l.past = appendAtMost(maxPast, l.past, earlier.ended(cmp.Or(c.Change.earlier, replaced), c.Change.Who))
	}
	l.inForce[key] = c.Change
}

// endOf notes that the changes of a source that is removed could not be ended, and returns the
// reports of them. Their later fate stands in the log alone.
func (l *ledger) endOf(w *watched) (told []change) {
	for key, r := range l.inForce {
		if key.of.source == w {
			r = r.ended(stuck, "")
			c := change{At: *r.Ended, Who: r.Who, What: "the source was removed before the change could be ended", Source: r.Source, Key: r.Key, ID: r.ID, Change: r}
			l.add(key, c)
			told = append(told, c)
		}
	}
	return told
}

// appendAtMost appends to the latest of a kind, and forgets the oldest if there are too many.
func appendAtMost[T any](most int, all []T, one T) []T {
	if len(all) == most {
		all = slices.Delete(all, 0, 1)
	}
	return append(all, one)
}

// current returns the changes that are in force, oldest first.
func (l *ledger) current() []record {
	all := slices.AppendSeq([]record{}, maps.Values(l.inForce))
	slices.SortFunc(all, func(a, b record) int {
		return cmp.Or(a.From.Compare(b.From), strings.Compare(a.Source, b.Source), strings.Compare(a.Key, b.Key), strings.Compare(a.Kind, b.Kind))
	})
	return all
}

// withOverride adds to a bucket the change of its limits that is in force. There is none if others
// have changed the limits since.
func (c *core) withOverride(b bucket) bucket {
	key := changeKey{of: target{source: b.of, key: b.raw}}
	c.mu.Lock()
	r, ok := c.ledger.inForce[key]
	c.mu.Unlock()
	if ok && c.controller.holds(key) {
		b.Override = &override{From: r.From, Until: r.Until, Who: r.Who, Before: *r.Before, Error: r.Error}
	}
	return b
}

// A Change is a change that somebody has made through the API, and that has not ended: of the limits of a bucket, or a
// hold of its line.
type Change struct {
	Source, Key string // the key is the text of the key of a Group
	Who         string
	From, Until time.Time

	Limits shaper.Limits // zero: it is a hold
	Before shaper.Limits // that Limits have replaced
}

// Changes returns the changes that are in force, the oldest first. A program that keeps them can [Inspector.Resume] them after a
// restart, or when another source has taken the place of one.
func (i *Inspector) Changes() (all []Change) {
	i.controller.endOvertaken()
	c := i.controller
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, a := range c.active {
		all = append(all, Change{key.of.source.name, key.of.key, a.record.Who, a.record.From, *a.record.Until, a.given.limits, a.basis})
	}
	slices.SortFunc(all, func(a, b Change) int {
		return cmp.Or(a.From.Compare(b.From), strings.Compare(a.Source, b.Source), strings.Compare(a.Key, b.Key), cmp.Compare(b.Limits.Rate, a.Limits.Rate))
	})
	return all
}

// Resume puts a change in force for the rest of its time, as if it had just been made through the API: in its end, the limits that
// are in force now are put back. It returns an error if that time is over, if there is no such bucket, or if
// the API would have refused the change.
func (i *Inspector) Resume(c Change) error {
	w, err := i.sourceNamed(c.Source)
	if err != nil {
		return err
	}
	ref, ok := w.source.find(c.Key)
	if !ok {
		return fmt.Errorf("inspect: Resume: the source %q has no bucket of the key %q", c.Source, shorten(c.Key))
	}
	if !c.Until.After(time.Now()) {
		return fmt.Errorf("inspect: Resume: the change ended at %v", c.Until)
	}
	want := command{of: target{source: w, key: c.Key}, ref: ref, who: c.Who, limits: c.Limits, text: c.Limits.String(), from: c.From, until: c.Until}
	if c.Limits == (shaper.Limits{}) {
		_, err = i.controller.hold(want)
	} else {
		_, err = i.controller.setLimits(want)
	}
	return err
}

// Overtake ends a change of limits that [Inspector.Changes] has returned, if it is still in force, and leaves the limits
// of the bucket as they are. It is for a program that has given the bucket other limits, which may be the very ones of
// the change: from limits alone that can't be told.
func (i *Inspector) Overtake(c Change) {
	if w := i.source(c.Source); w != nil {
		i.controller.overtake(changeKey{of: target{source: w, key: c.Key}}, c.From)
	}
}

// serveChanges tells of all changes that are in force, and of the latest that have ended.
func (i *Inspector) serveChanges(w http.ResponseWriter, _ *http.Request, q query) error {
	name := q.text("source")
	answer := struct {
		At      time.Time `json:"at"`
		InForce []record  `json:"in_force"`
		Past    []record  `json:"past"`
	}{At: time.Now().UTC()}
	i.controller.endOvertaken() // So that only changes in force are told.
	i.mu.Lock()
	answer.InForce, answer.Past = i.ledger.current(), append([]record{}, i.ledger.past...)
	known := name == "" || i.sourceLocked(name) != nil
	i.mu.Unlock()
	slices.Reverse(answer.InForce)
	slices.Reverse(answer.Past)
	if name != "" {
		of := func(r record) bool { return r.Source != name }
		answer.InForce, answer.Past = slices.DeleteFunc(answer.InForce, of), slices.DeleteFunc(answer.Past, of)
	}
	if !known && len(answer.Past) == 0 { // A source that was removed may have past changes.
		return unknownSource(name)
	}
	writeJSON(w, http.StatusOK, answer)
	return nil
}

// A changer is the part of a [bucketRef] that changes its bucket.
type changer interface {
	// limitsNow returns the limits of the bucket, or the ones that it would get if it is not in
	// use. It may call the limits function of a Group.
	limitsNow() (shaper.Limits, error)

	// setting returns the limits that SetLimits has given the bucket.
	setting() setting

	// setLimits puts limits in force.
	setLimits(l shaper.Limits) error

	// putBack undoes setLimits. before is the setting from before.
	putBack(before setting) error

	// hold holds the line of the bucket; 0 ends all holds.
	hold(d time.Duration)
}

// A setting is the limits that SetLimits has given a bucket. given is false if it has given
// none, so that the limits function of a Group counts.
type setting struct {
	limits shaper.Limits
	given  bool
}

func (s *openShaper) limitsNow() (shaper.Limits, error) { return s.setting().limits, nil }

// setting has the ceiling in place of a rate that adapts: the rate itself is no operator's.
func (s *openShaper) setting() setting {
	if s.adapts != nil {
		return setting{s.adapts.Limits(), true}
	}
	return setting{s.s.Limits(), true}
}

func (s *openShaper) setLimits(l shaper.Limits) error { return s.s.SetLimits(l) }

func (s *openShaper) putBack(before setting) error { return s.s.SetLimits(before.limits) }

func (s *openShaper) hold(d time.Duration) { s.s.Hold(d) }

func (b *groupBucket[K]) limitsNow() (shaper.Limits, error) {
	return b.group.g.LimitsOf(b.key)
}

func (b *groupBucket[K]) setting() setting {
	l, ok := b.group.g.Override(b.key)
	return setting{l, ok}
}

func (b *groupBucket[K]) setLimits(l shaper.Limits) error { return b.group.g.SetLimits(b.key, l) }

// putBack lets the limits function say the limits of the key again, which may have
// changed meanwhile, unless the program had set others.
func (b *groupBucket[K]) putBack(before setting) error {
	if before.given {
		return b.group.g.SetLimits(b.key, before.limits)
	}
	return b.group.g.ResetLimits(b.key)
}

func (b *groupBucket[K]) hold(d time.Duration) { b.group.g.Limiter(b.key).Hold(d) }

package replicas

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"time"

	"example.com/leakybucket/shaper/shared"
)

const (
	lease    = 3 * time.Second
	every    = time.Second            // is how often the store is asked
	soon     = 250 * time.Millisecond // likewise, while calls wait
	soonest  = 100 * time.Millisecond // likewise, while a lease runs out, or another replica takes over
	patience = 500 * time.Millisecond // for the store

	// grace is for what a replica has said before it lost the line, and is still on its way.
	grace = 250 * time.Millisecond

	longestValue = 1 << 20 // of a Keeper
)

// A standing is how a replica stands with the store. The lock of the Replica guards it, and only the goroutine of run changes it,
// except that a lease ends and a replica is shut down.
type standing struct {
	// While the store says that this replica keeps the key, isMine is true. It has written its own value when isOpen is.
	isMine bool
	isOpen bool      // calls may leave
	until  time.Time // the end of the lease
	expiry *time.Timer
	secret string    // "": the line has not begun here
	before []byte    // the value that the store had before
	opens  time.Time // the line begins no sooner

	isFree    bool      // the key was, when the store was asked last
	keeper    told      // that has the line; its ID is "" if none is known
	since     time.Time // when that began
	seen      time.Time // when the store has said last that another replica keeps the key
	isApart   bool
	isClosing bool
	isClosed  bool
	handedOn  chan struct{} // closed when nothing is left to be handed on
	notHanded error         // why nothing was

	err      error     // of the store; nil: it has answered last time
	answered time.Time // last
	asked    time.Time // when that was asked
	clock    int64     // of the store, in that answer
	astray   error     // why calls can't be passed to the keeper
	strayed  int       // seq when that began; math.MaxInt: the log has it
}

// A told is what the replica that has the line tells the others, as a [shared.Keeping].Value.
type told struct {
	ID      string `json:"id"`
	Address string `json:"address"`
	Secret  string `json:"secret"` // signs the calls that are passed to it
	At      int64  `json:"at"`     // a reading of the store's clock, at which or before Line was saved
	Handed  bool   `json:"handed"` // Line is all of it, and none has left since
	Line    []byte `json:"line"`
}

// run asks the store until ctx ends.
func (r *Replica) run(ctx context.Context) {
	defer close(r.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	asked := time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-r.kick:
			if early := soon - time.Since(asked); early > 0 {
				timer.Reset(early)
				continue
			}
		}
		asked = time.Now()
		next := r.ask(ctx)
		timer.Reset(next - time.Since(asked))
	}
}

// askSoon makes the store be asked at once.
func (r *Replica) askSoon() {
	select {
	case r.kick <- struct{}{}:
	default: // It will be.
	}
}

// ask asks the store once, and returns after which time to ask again.
func (r *Replica) ask(ctx context.Context) (next time.Duration) {
	asked := time.Now()
	r.mu.Lock()
	r.endLocked(asked)
	q := shared.Keeping{Key: r.config.Key, ID: r.id, Value: r.before}
	isClosing, secret := r.isClosing, r.secret
	if (r.isMine || r.isFree) && !isClosing { // Else this replica only looks.
		q.Lease = lease
	}
	r.mu.Unlock()
	if secret != "" {
		q.Value = r.value(asked, secret, isClosing)
	}
	within, cancel := context.WithTimeout(ctx, patience)
	kept, err := r.config.Keeper.Keep(within, q)
	cancel()
	if ctx.Err() != nil {
		return 0
	}
	if err != nil {
		return r.failed(err)
	}
	return r.heard(asked, q.Lease == 0, kept)
}

// value returns what this replica tells the others.
func (r *Replica) value(now time.Time, secret string, isLast bool) []byte {
	save := r.config.Line.Holds
	if isLast {
		save = r.config.Line.Save
	}
	// The store's clock may be behind this, by the time that its answer has taken.
	t := told{ID: r.id, Address: r.config.Advertise, Secret: secret, At: r.clock + now.Sub(r.asked).Microseconds(), Handed: isLast}
	var err error
	if t.Line, err = save(); err != nil {
		r.config.Log.Error("the line could not be saved, and the next replica begins with full levels", "error", err)
		t.Line, t.Handed = nil, false
	}
	text, _ := json.Marshal(t) // There is nothing in it that JSON can't hold.
	if len(text) > longestValue {
		r.config.Log.Error("the line is too long to be handed on, and the next replica begins with full levels", "bytes", len(text))
		t.Line, t.Handed = nil, false
		text, _ = json.Marshal(t)
	}
	return text
}

// failed notes that the store could not be asked.
func (r *Replica) failed(err error) (next time.Duration) {
	r.mu.Lock()
	if r.err == nil {
		r.config.Log.Warn("the store of the replicas can't be asked", "error", err)
	}
	r.err = err
	parts := r.config.Fallback > 0 && !r.isMine && !r.isApart && !r.isClosing && r.keeper.ID == "" && time.Since(r.answered) >= lease
	r.mu.Unlock()
	if parts {
		r.part()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tellLocked()
	switch {
	case r.isMine:
		return soonest
	case r.waiting > 0 || r.config.Fallback > 0 && !r.isApart:
		return soon
	}
	return every
}

// part begins a line of this replica alone.
func (r *Replica) part() {
	if err := r.config.Line.Part(r.config.Fallback); err != nil {
		r.config.Log.Error("the quota can't be parted, and calls wait for the store", "error", err)
		return
	}
	r.begin(nil, 0, true)
	r.config.Log.Warn("this replica has a part of the quota for itself until the store can be asked", "part", r.config.Fallback)
	r.mu.Lock()
	r.isApart, r.since = !r.isClosing, time.Now()
	r.mu.Unlock()
}

// heard notes an answer of the store. looked says that this replica has only looked, or has given the key up.
func (r *Replica) heard(asked time.Time, looked bool, kept shared.Kept) (next time.Duration) {
	var t told
	if len(kept.Value) > 0 {
		if err := json.Unmarshal(kept.Value, &t); err != nil {
			r.config.Log.Error("what the replica that had the line has told is damaged", "error", err)
			t = told{}
		}
	}
	r.mu.Lock()
	if r.err != nil {
		r.config.Log.Info("the store of the replicas can be asked again")
	}
	r.err, r.answered, r.asked, r.clock = nil, time.Now(), asked, kept.Now
	wasApart := r.isApart
	if r.isApart = false; wasApart {
		r.moveLocked()
	}
	isClosing := r.isClosing
	r.mu.Unlock()
	if wasApart {
		if err := r.config.Line.Part(1); err != nil {
			r.config.Log.Error("the line keeps a part of the quota", "error", err)
		}
	}
	switch {
	case isClosing && looked, kept.ID != r.id:
		next = r.follows(kept, t)
	case isClosing:
		r.mu.Lock()
		r.isMine, r.until, next = true, asked.Add(lease), 0
		if r.secret == "" {
			r.before = kept.Value
		}
		r.mu.Unlock()
	default:
		next = r.keeps(asked, kept, t)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tellLocked()
	if r.waiting > 0 && !r.isOpen {
		next = min(next, soon)
	}
	return next
}

// follows notes that another replica keeps the key, or none.
func (r *Replica) follows(kept shared.Kept, t told) (next time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isMine || r.isOpen {
		r.loseLocked()
	}
	r.handOnLocked()
	now := time.Now()
	if kept.ID == "" {
		// If the store has lost its state, whoever has the line still has a lease, and is to come first.
		r.keeper, r.isFree = told{}, len(kept.Value) > 0 || now.Sub(r.seen) >= lease
		if r.isClosing || !r.isFree {
			return every
		}
		return 0
	}
	r.seen, r.isFree = now, false
	if t.ID != kept.ID { // Its own value follows at once.
		r.keeper = told{}
		return soonest
	}
	if t.Line = nil; t.ID != r.keeper.ID || t.Secret != r.keeper.Secret {
		r.since, r.astray = now, nil
		r.config.Log.Info("another replica has the line", "address", t.Address)
	}
	r.keeper = t
	r.recallLocked()
	return every
}

// recallLocked takes back the calls that were passed to replicas before the one that has the line: they let none leave any more. As
// long as none has the line, one of them may have it still, although the store has lost that.
func (r *Replica) recallLocked() {
	for w := range r.ways {
		if w.to != r.id && w.to != r.keeper.ID && !w.isRecalled {
			w.isRecalled = true
			time.AfterFunc(grace, w.move)
		}
	}
}

// keeps notes that this replica keeps the key.
func (r *Replica) keeps(asked time.Time, kept shared.Kept, t told) (next time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	isOwn := r.secret != "" && t.ID == r.id && t.Secret == r.secret
	if isOwn || r.isOpen && now.Before(r.until) {
		r.renewLocked(asked)
		if !r.isOpen && isOwn {
			r.openLocked()
		}
		if !isOwn { // The store has lost its state, in which nobody else can have a lease.
			return 0
		}
		return every
	}
	if r.secret != "" { // Another replica may have had the line meanwhile.
		r.loseLocked()
	}
	if !r.isMine {
		r.isMine, r.isFree, r.keeper, r.before, r.opens = true, false, told{}, kept.Value, now
		if len(kept.Value) == 0 { // There may be a lease that the store has lost.
			r.opens = now.Add(lease)
		}
	}
	if r.renewLocked(asked); now.Before(r.opens) {
		return min(every, r.opens.Sub(now))
	}
	r.mu.Unlock()
	age := time.Duration(max(0, kept.Now-t.At)) * time.Microsecond
	// In a long outage others may have had parts of the quota.
	isExact := t.Handed && (r.config.Fallback == 0 || age < lease)
	begun := r.begin(t.Line, age, !isExact)
	r.mu.Lock()
	if !begun {
		return every
	}
	r.secret = rand.Text()
	return 0
}

// begin begins the line, and reports whether it has begun.
func (r *Replica) begin(handed []byte, age time.Duration, full bool) bool {
	err := r.config.Line.Begin(handed, age, full)
	if err != nil && len(handed) > 0 {
		r.config.Log.Error("what was handed on makes no sense, and the line begins with full levels", "error", err)
		err = r.config.Line.Begin(nil, 0, true)
	}
	if err != nil {
		r.config.Log.Error("the line can't begin here", "error", err)
	}
	return err == nil
}

// renewLocked notes that the lease lasts from when the store was asked.
func (r *Replica) renewLocked(asked time.Time) {
	r.until = asked.Add(lease)
	r.expiry.Reset(time.Until(r.until))
}

// openLocked lets calls leave.
func (r *Replica) openLocked() {
	r.isOpen, r.since, r.before, r.astray = true, time.Now(), nil, nil
	r.keeper = told{ID: r.id, Address: r.config.Advertise, Secret: r.secret}
	r.recallLocked()
	r.config.Log.Info("this replica has the line")
}

// expire ends the lease.
func (r *Replica) expire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.endLocked(time.Now()) {
		r.tellLocked()
		r.askSoon()
	}
}

// endLocked ends the lease, if it is over, and reports whether it was.
func (r *Replica) endLocked(now time.Time) bool {
	if !r.isMine || now.Before(r.until) {
		return false
	}
	if r.isClosing && r.secret != "" {
		r.notHanded = fmt.Errorf("replicas: the line could not be handed on before its lease ended: %v", r.err)
	}
	r.loseLocked()
	r.handOnLocked()
	return true
}

// loseLocked notes that this replica no longer keeps the key.
func (r *Replica) loseLocked() {
	r.stopLocked()
	r.moveLocked()
	if r.isMine { // If the store loses its state now, whoever has the line next is to come first.
		r.seen = time.Now()
	}
	r.isMine, r.secret, r.before = false, "", nil
}

// stopLocked lets no call leave any more.
func (r *Replica) stopLocked() {
	if r.isOpen {
		r.config.Log.Info("this replica no longer has the line")
		r.isOpen, r.since, r.keeper = false, time.Now(), told{}
	}
}

// handOnLocked notes that nothing is left to be handed on, if that is so.
func (r *Replica) handOnLocked() {
	if !r.isClosing || r.isMine {
		return
	}
	select {
	case <-r.handedOn:
	default:
		close(r.handedOn)
	}
}

// tellLocked tells all that wait that something may have changed.
func (r *Replica) tellLocked() {
	close(r.news)
	r.news = make(chan struct{})
	r.seq++
}

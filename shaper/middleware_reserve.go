package shaper

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// WithReserve makes the cost of a request an estimate ([WithCost]): [Middleware] reserves it, and [Settle] says what
// the request has cost; without that the estimate stands. A [Transport] with the same Limiter whose request has the
// context of one that was let in so does not wait again: the reservation is for its first attempt. If it sends the
// request again ([Transport.Retry]), that is settled with 0, and Settle is for the second.
func WithReserve() MiddlewareOption { return reserveOption{} }

type reserveOption struct{}

func (reserveOption) applyMiddleware(to *middlewareOptions) { to.reserve = true }

// Settle says what a request has cost that a [Middleware] has passed on [WithReserve] or [WithCosts], as the
// function that [Shaper.Reserve] or [Shaper.ReserveEach] returns; its seat stays taken until the handler has
// returned. r is that request or one with a context derived from its context. If several Middlewares have passed it
// on, all of them settle. Settle reports whether there was something to be settled: not for a request of cost 0,
// after another Settle, and once the handler has returned.
func Settle(r *http.Request, actual ...int) bool {
	settled := false
	for s := settlingOf(r.Context()); s != nil; s = s.outer {
		if s.settle(actual) {
			settled = true
		}
	}
	return settled
}

// A settling is the reservation of a request that a [Middleware] has passed on. It is in the request's context.
type settling struct {
	outer     *settling // of the Middleware in front of this one; nil: none has reserved
	limiter   inner
	estimates []int     // at each level
	asked     time.Time // when it asked the Limiter first
	until     time.Time // the bound of its field; zero: none

	mu      sync.Mutex
	v       unsettled // nil: it is not let in yet
	isOver  bool      // it is settled, or about to be
	isEnded bool      // the handler has returned
	isTaken bool      // a Transport sends it
}

type settlingKey struct{}

// settlingOf returns the innermost settling of a context; nil: there is none.
func settlingOf(ctx context.Context) *settling {
	s, _ := ctx.Value(settlingKey{}).(*settling)
	return s
}

// enter reserves the estimate. It returns the function that gives the seat back.
func (s *settling) enter(ctx context.Context) (release func(), err error) {
	s.asked = time.Now()
	if w, ok := ctx.(*waitContext); ok {
		s.until = w.until
	}
	v, err := reserveEach(ctx, s.limiter, s.estimates, newcomer)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.v = v
	return s.releaseSeat, nil
}

// settle is Settle for one of them.
func (s *settling) settle(actual []int) bool {
	v := s.over()
	if v == nil {
		return false
	}
	settleCosts(v, actual)
	return true
}

// over notes that the reservation is about to be settled, and returns it; nil: there is nothing to be settled.
func (s *settling) over() unsettled {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.v == nil || s.isOver || s.isEnded {
		return nil
	}
	s.isOver = true
	return s.v
}

// releaseSeat gives back the seat.
func (s *settling) releaseSeat() {
	s.mu.Lock()
	v := s.v
	s.mu.Unlock()
	v.releaseSeat()
}

// end lets the estimate stand, if it is not settled, and gives back the seat. The handler has returned.
func (s *settling) end() {
	s.mu.Lock()
	v, isOver := s.v, s.isOver
	s.isEnded = true
	s.mu.Unlock()
	switch {
	case v == nil:
	case isOver:
		v.releaseSeat()
	default:
		v.settle(-1)
	}
}

// take returns the settling of a request whose context has one for a Limiter, for a Transport that sends the request; nil if
// there is none, or another Transport has it.
func (s *settling) take(limiter inner) *settling {
	for ; s != nil; s = s.outer {
		if sameBucket(s.limiter, limiter) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.v == nil || s.isOver || s.isEnded || s.isTaken {
				return nil
			}
			s.isTaken = true
			return s
		}
	}
	return nil
}

// sameBucket reports whether two inners are of one Limiter of this package, and one key.
func sameBucket(a, b inner) bool {
	if _, isForeign := a.(foreign); isForeign { // Its Limiter may be of a type that can't be compared.
		return false
	}
	return a == b
}

// reenter settles the reservation with 0, and reserves once more at the head of the line.
func (s *settling) reenter(ctx context.Context) error {
	v := s.over()
	if v == nil { // It has been settled meanwhile.
		return ErrClosed
	}
	v.notSent()
	v, err := reserveEach(ctx, s.limiter, s.estimates, reentry)
	if err != nil {
		return err
	}
	s.mu.Lock()
	ended := s.isEnded
	if !ended {
		s.v, s.isOver = v, false
	}
	s.mu.Unlock()
	if ended {
		v.notSent()
		return ErrClosed
	}
	return nil
}

// sending is a settling as the Transport that sends its request sees it: the seat stays, and a cost that is unknown is left
// to the handler.
type sending struct{ *settling }

func (s sending) settle(actual int) { s.settleCost(actual) }

func (s sending) settleCost(actual int) {
	if actual >= 0 {
		s.settling.settle([]int{actual})
	}
}

func (s sending) releaseSeat() {}
func (s sending) notSent()     {}

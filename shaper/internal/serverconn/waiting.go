package serverconn

import (
	"context"
	"time"
)

// A Waiting is a request with a context of [Conn.PeerContext] that waits in a line.
// [BeginWait] makes one.
type Waiting peerContext

// BeginWait begins a wait in a line, for news or for the end of ctx, whichever comes first.
// If ctx is one of [Conn.PeerContext], it returns a Waiting, and the caller must then call
// [Waiting.Await] with news and with done, which is the Done channel of the request's own
// context. Otherwise w is nil, and done is ctx.Done().
//
// A channel of ctx's own, closed when the context of the request ends, would take 500 bytes
// more for each request that waits.
//
// There must be room for one value in news, and no goroutine may wait for room in it.
func BeginWait(ctx context.Context, news chan<- struct{}) (w *Waiting, done <-chan struct{}) {
	p, ok := ctx.(*peerContext)
	if !ok || !p.wait.byDone {
		return nil, ctx.Done()
	}
	done = p.request.Context().Done()
	if !p.beginFor(news) {
		return nil, p.Done()
	}
	return (*Waiting)(p), done
}

// beginFor begins a wait for news, and reports whether the context is free for it. It is not if it
// has ended, or if a hook of the caller's waits with it in another goroutine.
func (p *peerContext) beginFor(news chan<- struct{}) bool {
	p.wait.mu.Lock()
	defer p.wait.mu.Unlock()
	if p.wait.news != nil || p.wait.stopped || p.wait.ended {
		return false
	}
	p.beginLocked()
	p.wait.news = news
	return true
}

// Await waits until there is news or the context has ended, and reports whether there is news
// and the context has not ended. A client that is found to be gone wakes it by a value in news.
// So if the context has ended, a value may be left there.
func (w *Waiting) Await(news, done <-chan struct{}) bool {
	came := true
	select {
	case <-news:
	case <-done:
		came = w.awaitBrief(news)
	}
	// After this nothing is sent any more. So if the context has not ended, the only value
	// in news was the one that came, and the channel may be used for another wait.
	w.wait.mu.Lock()
	defer w.wait.mu.Unlock()
	w.wait.news = nil
	return came && !w.wait.ended
}

// awaitBrief waits on for a request whose context has ended, until that counts. It reports
// whether there is news before.
//
// It is not inlined, so that Await needs no stack for it.
//
//go:noinline
func (w *Waiting) awaitBrief(news <-chan struct{}) bool {
	if w.request.Context().Err() != context.Canceled {
		return false
	}
	timer := time.NewTimer(w.wait.from - sinceStart())
	defer timer.Stop()
	select {
	case <-news:
		return true
	case <-timer.C:
		return false
	}
}

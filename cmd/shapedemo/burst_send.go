package main

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// clumps describe how a burst arrives, because real clients come neither all at
// once nor evenly. Each clump is a share of the requests, sent at one instant,
// which is a fraction of the span of the burst.
var clumps = []struct{ share, at float64 }{
	{0.30, 0},
	{0.12, 0.36},
	{0.26, 0.50},
	{0.08, 0.80},
	{0.24, 1},
}

// sendTimes returns when each of n requests is sent, counted from the first.
func sendTimes(n int, span time.Duration) []time.Duration {
	sends := make([]time.Duration, 0, n)
	share := 0.0
	for _, c := range clumps {
		share += c.share
		for len(sends) < int(share*float64(n)+0.5) {
			sends = append(sends, time.Duration(c.at*float64(span)))
		}
	}
	return sends
}

// burstSpan returns the time over which a burst of n arrives: a quarter of a
// second, or less where the upstream would serve most of the burst in that time.
func burstSpan(n int, s capacity) time.Duration {
	const longest = 250 * time.Millisecond
	rest := 0.8*float64(n) - float64(s.workers)
	return time.Duration(max(0, min(longest.Seconds(), rest/s.perSecond())) * float64(time.Second))
}

// A result is what one request of the burst got.
type result struct {
	status       int           // of the response; 0 if there was none
	wait         time.Duration // for its departure, by the Server-Timing header; 0 without one
	retryAfter   time.Duration // how long a refusal asks the client to wait; 0 for all else
	disconnected bool          // the client disconnected before it got a response
}

// sendBurst sends a burst of real requests, each on a connection of its own. It
// returns when all have their responses or have disconnected, or when ctx has
// ended, with its error. The impatient clients are keyed by index in sends.
func sendBurst(ctx context.Context, target string, sends []time.Duration, impatient map[int]*impatientClient) ([]result, error) {
	client := newClient(len(sends))
	defer client.CloseIdleConnections()
	results := make([]result, len(sends))
	sendAt(ctx, sends, func(i int) {
		if c := impatient[i]; c != nil {
			results[i] = c.send(ctx, target)
		} else {
			results[i] = sendOne(ctx, client, target)
		}
	})
	return results, ctx.Err()
}

// newClient returns an HTTP client that keeps that many connections for further
// requests. Whoever has done with it closes them with CloseIdleConnections.
func newClient(connections int) *http.Client {
	return &http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: connections, DisableCompression: true, IdleConnTimeout: time.Minute},
		// A redirect is a response like any other.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// sendAt calls send(i) on a goroutine of its own when the time sends[i], counted
// from now, has come, and returns when all calls have. After the end of ctx it
// begins no call.
func sendAt(ctx context.Context, sends []time.Duration, send func(i int)) {
	start := time.Now()
	var all sync.WaitGroup
	for i, after := range sends {
		all.Go(func() {
			sleep(ctx, time.Until(start.Add(after)))
			if ctx.Err() == nil {
				send(i)
			}
		})
	}
	all.Wait()
}

// sendOne sends one request and reads its response to the end.
func sendOne(ctx context.Context, client *http.Client, target string) result {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return result{}
	}
	return readResult(client.Do(r))
}

// readResult reads a response to its end. It takes what [http.Client.Do] returns.
func readResult(got *http.Response, err error) result {
	if err != nil {
		return result{}
	}
	defer got.Body.Close()
	if _, err := io.Copy(io.Discard, got.Body); err != nil {
		return result{}
	}
	r := result{status: got.StatusCode, wait: waitFromHeader(got.Header)}
	if r.status == http.StatusTooManyRequests {
		r.retryAfter = retryAfter(got.Header)
	}
	return r
}

// serverTiming is the header in which the middleware reports how long a request
// waited.
const serverTiming = "Server-Timing"

// waitFromHeader returns the wait that the headers of a response report.
func waitFromHeader(h http.Header) time.Duration {
	for _, value := range h.Values(serverTiming) {
		if text, ok := strings.CutPrefix(value, "shaper;dur="); ok {
			if ms, err := strconv.ParseFloat(text, 64); err == nil {
				return time.Duration(ms * float64(time.Millisecond))
			}
		}
	}
	return 0
}

// A tally counts the results of a burst.
type tally struct {
	sent, served, refused, disconnected, failed, other int
	longestWait                                        time.Duration // of the requests that were served
}

// countResults counts results by kind.
func countResults(results []result) tally {
	var t tally
	for _, r := range results {
		t.add(r)
	}
	return t
}

// add counts one more result. A request without a response, or with an unexpected
// one that is not a server error either, counts as other.
func (t *tally) add(r result) {
	t.sent++
	switch {
	case r.disconnected:
		t.disconnected++
	case r.status == http.StatusOK:
		t.served++
		t.longestWait = max(t.longestWait, r.wait)
	case r.status == http.StatusTooManyRequests:
		t.refused++
	case r.status >= http.StatusInternalServerError:
		t.failed++
	default:
		t.other++
	}
}

// burstURL returns the URL at a server that the burst requests.
func burstURL(server *url.URL) string { return server.JoinPath("burst").String() }

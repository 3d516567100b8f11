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

// clumps are how a burst arrives: each with its share of the requests, and its
// place in the span of the burst. Real clients come like that, neither all at
// once nor evenly.
var clumps = []struct{ share, at float64 }{
	{0.30, 0},
	{0.12, 0.36},
	{0.26, 0.50},
	{0.08, 0.80},
	{0.24, 1},
}

// ragged returns when each of n requests is sent, counted from the first.
func ragged(n int, span time.Duration) []time.Duration {
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

// spanOf is the time over which a burst of n arrives: a quarter of a second, or
// less where the upstream would serve most of the burst meanwhile.
func spanOf(n int, s size) time.Duration {
	const longest = 250 * time.Millisecond
	rest := 0.8*float64(n) - float64(s.workers)
	return time.Duration(max(0, min(longest.Seconds(), rest/s.perSecond())) * float64(time.Second))
}

// An answer is what one request of the burst got.
type answer struct {
	status   int           // 0: none
	wait     time.Duration // in the line, as the answer tells; 0 where it does not
	vanished bool          // the client did not stay for it
}

// fire sends a burst of real requests, each on a connection of its own, and
// returns when all have their answers, or have vanished, or when ctx has ended,
// with its error. The vanishers are known by their place in sends.
func fire(ctx context.Context, target string, sends []time.Duration, vanishers map[int]*vanisher) ([]answer, error) {
	transport := &http.Transport{MaxIdleConnsPerHost: len(sends), DisableCompression: true}
	defer transport.CloseIdleConnections()
	client := &http.Client{
		Transport: transport,
		// An answer that points elsewhere is an answer.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	answers := make([]answer, len(sends))
	start := time.Now()
	var all sync.WaitGroup
	for i, after := range sends {
		all.Go(func() {
			timer := time.NewTimer(time.Until(start.Add(after)))
			defer timer.Stop()
			select {
			case <-timer.C:
				if v := vanishers[i]; v != nil {
					answers[i] = v.ask(ctx, target)
				} else {
					answers[i] = get(ctx, client, target)
				}
			case <-ctx.Done():
			}
		})
	}
	all.Wait()
	return answers, ctx.Err()
}

// get sends one request and reads its answer to the end.
func get(ctx context.Context, client *http.Client, target string) answer {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return answer{}
	}
	return read(client.Do(r))
}

// read reads an answer to its end, if there is one.
func read(got *http.Response, err error) answer {
	if err != nil {
		return answer{}
	}
	defer got.Body.Close()
	if _, err := io.Copy(io.Discard, got.Body); err != nil {
		return answer{}
	}
	return answer{status: got.StatusCode, wait: waitTold(got.Header)}
}

// serverTiming is the header that tells the client how long the line held it.
const serverTiming = "Server-Timing"

// waitTold reads the time in the line from the headers of an answer.
func waitTold(h http.Header) time.Duration {
	for _, value := range h.Values(serverTiming) {
		if text, ok := strings.CutPrefix(value, "shaper;dur="); ok {
			if ms, err := strconv.ParseFloat(text, 64); err == nil {
				return time.Duration(ms * float64(time.Millisecond))
			}
		}
	}
	return 0
}

// A tally counts the answers to a burst.
type tally struct {
	sent, served, refused, vanished, failed, other int
	longest                                        time.Duration // wait of one that was served
}

// count sorts answers by what they mean. Whatever is neither of the answers
// expected nor a failure of the upstream counts as other: no answer at all is.
func count(answers []answer) tally {
	t := tally{sent: len(answers)}
	for _, a := range answers {
		switch {
		case a.vanished:
			t.vanished++
		case a.status == http.StatusOK:
			t.served++
			t.longest = max(t.longest, a.wait)
		case a.status == http.StatusTooManyRequests:
			t.refused++
		case a.status >= http.StatusInternalServerError:
			t.failed++
		default:
			t.other++
		}
	}
	return t
}

// burstURL is what a burst asks a server for.
func burstURL(server *url.URL) string { return server.JoinPath("burst").String() }

package main

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A hit is one request of a made-up shop.
type hit struct {
	at           time.Duration
	client       string
	method, path string
	took         time.Duration
}

// opening is when the shop's log begins.
var opening = time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)

// shopTraffic returns requests in the order of their arrival, always the same: visitors
// who load pages with all that belongs to them, some who log in, and a crawler that asks 25
// times a second for a tenth of the time.
func shopTraffic(requests, clients int, span time.Duration) []hit {
	chance := rand.New(rand.NewPCG(16, 8))
	within := func(d time.Duration) time.Duration { return time.Duration(chance.Int64N(int64(d))) }
	var all []hit
	add := func(at time.Duration, client, method, path string) {
		all = append(all, hit{at, client, method, path, time.Millisecond + within(40*time.Millisecond)})
	}
	for at := span * 2 / 5; at < span/2 && len(all) < requests/4; at += 20*time.Millisecond + within(40*time.Millisecond) {
		add(at, "203.0.113.9", "GET", fmt.Sprintf("/items/%d", len(all)))
	}
	for len(all) < requests {
		at := within(span)
		n := chance.IntN(clients)
		client := fmt.Sprintf("198.51.%d.%d", n/250, 1+n%250)
		if n%5 == 0 {
			client = fmt.Sprintf("2001:db8:%x::%x", n, 1+chance.IntN(0xffff))
		}
		if chance.IntN(12) == 0 {
			for range 1 + chance.IntN(5) {
				add(at, client, "POST", "/login")
				at += time.Second + within(5*time.Second)
			}
			continue
		}
		add(at, client, "GET", fmt.Sprintf("/items/%d", chance.IntN(1000)))
		for asset := range chance.IntN(14) {
			add(at+50*time.Millisecond+within(300*time.Millisecond), client, "GET", fmt.Sprintf("/assets/%d.js", asset))
		}
	}
	all = slices.DeleteFunc(all, func(h hit) bool { return h.at >= span })
	slices.SortStableFunc(all, func(a, b hit) int { return cmp.Compare(a.at, b.at) })
	return all[:min(requests, len(all))]
}

// caddyLine returns a line of the access log of Caddy, which writes it at the end.
func caddyLine(h hit) string {
	return fmt.Sprintf(`{"level":"info","ts":%.7f,"logger":"http.log.access.log0","msg":"handled request","request":{"remote_ip":"%[2]s","remote_port":"40123","client_ip":"%[2]s","proto":"HTTP/2.0","method":"%s","host":"shop.example","uri":"%s","headers":{"User-Agent":["Mozilla/5.0"]}},"bytes_read":0,"user_id":"","duration":%.9f,"size":5120,"status":200,"resp_headers":{"Server":["Caddy"]}}`,
		float64(opening.Add(h.at+h.took).UnixMicro())/1e6, h.client, h.method, h.path, h.took.Seconds())
}

// combinedLine returns a line of the combined format.
func combinedLine(h hit) string {
	return fmt.Sprintf(`%s - - [%s] "%s %s HTTP/1.1" 200 5120 "https://shop.example/" "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"`,
		h.client, opening.Add(h.at).Format("02/Jan/2006:15:04:05 -0700"), h.method, h.path)
}

// writeLog writes a log, with the lines that are given behind those of the hits.
func writeLog(t testing.TB, name string, hits []hit, line func(hit) string, more ...string) string {
	t.Helper()
	if !filepath.IsAbs(name) && filepath.Base(name) == name {
		name = filepath.Join(t.TempDir(), name)
	}
	f, err := os.Create(name)
	require.NoError(t, err)
	w := bufio.NewWriter(f)
	for _, h := range hits {
		_, err := io.WriteString(w, line(h)+"\n")
		require.NoError(t, err)
	}
	for _, text := range more {
		_, err := io.WriteString(w, text+"\n")
		require.NoError(t, err)
	}
	require.NoError(t, w.Flush())
	require.NoError(t, f.Close())
	return name
}

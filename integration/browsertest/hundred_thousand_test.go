//go:build unix

package browsertest_test

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// BenchmarkHundredThousandKeys measures what a page costs while a group has 100,000 live
// keys and 1,000 calls arrive each second:
//
//	GOWORK=$PWD/all.work go test -run='^$' -bench=HundredThousandKeys -benchtime=1x ./integration/browsertest
func BenchmarkHundredThousandKeys(b *testing.B) {
	const keys = 100_000
	s := newScene(b)
	g := s.group("clients", "1/min burst 1000 depth 10", shaper.WithMaxKeys(2*keys))
	for i := range keys {
		require.True(b, g.Allow(fmt.Sprintf("message_send:user-%06d", i)))
	}
	s.every(10*time.Millisecond, func() {
		for range 10 {
			g.Allow(fmt.Sprintf("message_send:user-%06d", rand.IntN(keys)))
		}
	})
	const window = 10 * time.Second
	time.Sleep(time.Second)
	alone := cpuDuring(window)
	for b.Loop() {
		p := newTab(b, s.address(""))
		before := cpu()
		p.open(s.address(""))
		b.ReportMetric(float64((cpu() - before).Milliseconds()), "cpu-ms-of-first-view")
		paint := await(p, "the first paint", `performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? 0`, func(ms float64) bool { return ms > 0 })
		p.live()
		b.ReportMetric(paint, "ms-to-first-paint")
		b.ReportMetric(eval[float64](p, `performance.getEntriesByType("navigation")[0].responseStart`), "ms-to-first-byte")
		b.ReportMetric(eval[float64](p, `performance.getEntriesByType("navigation")[0].decodedBodySize / 1000`), "kB-of-html")

		s.count(func() { s.sent = 0 })
		shown := cpuDuring(window)
		b.ReportMetric(100*alone.Seconds()/window.Seconds(), "%-cpu-alone")
		b.ReportMetric(100*(shown-alone).Seconds()/window.Seconds(), "%-cpu-of-page")
		s.count(func() { b.ReportMetric(float64(s.sent)/1000/window.Seconds(), "kB/s-of-events") })

		began := time.Now()
		p.set("#contains", "message_send:user-0999")
		p.awaitTrue("filtered", `(ids => ids.length > 0 && ids.every(id => decodeURIComponent(id).startsWith("message_send:user-0999")))(`+rows+`)`)
		b.ReportMetric(time.Since(began).Seconds()*1000, "ms-to-filter")
	}
}

// cpuDuring returns the CPU time of a window.
func cpuDuring(window time.Duration) time.Duration {
	before := cpu()
	time.Sleep(window)
	return cpu() - before
}

// cpu returns the CPU time of this process so far. It has the server, not the browser.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

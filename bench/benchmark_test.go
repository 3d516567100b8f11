package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// These benchmarks guard the spacing and the busy part against regressions:
//
//	go test -run '^$' -bench Spacing -count 6 ./bench >new.txt
//	benchstat -col /limiter new.txt
//	benchstat old.txt new.txt
//
// An iteration is a cell in a child process. Its time says nothing, so it is
// not reported.

func BenchmarkSpacing(b *testing.B) {
	for _, contestant := range waitingContestants {
		for _, rate := range []float64{100, 1_000, 10_000, 100_000} {
			b.Run(fmt.Sprintf("limiter=%s/rate=%.0f/waiters=%d", contestant, rate, goalWaiters), func(b *testing.B) {
				r := benchmarkCell(b, spacingInput{
					Contestant: contestant, Rate: rate, Waiters: goalWaiters, Load: idle, Warm: warmUp, Window: 600 * time.Millisecond,
				})
				b.ReportMetric(r.CPUPer100k, "cpu-s/100k")
				b.ReportMetric(r.AllocsPerWait, "allocs/wait")
			})
		}
	}
}

func BenchmarkBusy(b *testing.B) {
	for _, l := range loads() {
		for _, contestant := range busyCompared {
			for _, at := range busyRates {
				b.Run(fmt.Sprintf("load=%s/limiter=%s/rate=%.0f/waiters=%d", l.name, contestant, at.rate, at.waiters), func(b *testing.B) {
					r := benchmarkCell(b, spacingInput{
						Contestant: contestant, Rate: at.rate, Waiters: at.waiters, Load: l.name, Warm: busyWarmUp, Window: at.window,
					})
					b.ReportMetric(r.BurstMS, "burst-ms")
				})
			}
		}
	}
}

// benchmarkCell measures a cell again and again, and reports the medians of
// what both benchmarks are about.
func benchmarkCell(b *testing.B, in spacingInput) spacingResult {
	var rounds []spacingResult
	for b.Loop() {
		var out spacingResult
		require.NoError(b, measureCell(b.Context(), "spacing", in, &out))
		rounds = append(rounds, out)
	}
	r := medianOfRounds(rounds)
	b.ReportMetric(0, "ns/op") // 0 leaves it out.
	b.ReportMetric(r.ErrorP50, "err-p50-us")
	b.ReportMetric(r.Bunched, "bunched-%")
	b.ReportMetric(100*r.RateReached, "rate-%")
	return r
}

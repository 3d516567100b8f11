package sharedfaults_test

import (
	"time"

	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// planVariable has the plan of a worker as JSON. A process that has it is a worker.
const planVariable = "SHAREDFAULTS_PLAN"

// A plan says what a worker does. The zero values of the options are the defaults of the
// shaper.
type plan struct {
	Engine engine
	Addrs  []string // of the engine; the URL of PostgreSQL
	Master string   // what the sentinels call it
	Key    string

	Rate    float64
	Burst   int
	Depth   int // 0 means that of the plan's load
	MaxWait time.Duration
	Slack   time.Duration // D

	Version  int64
	Guard    time.Duration
	Fallback shaper.Fallback

	Waiters  int           // goroutines that wait again and again, or
	Arrivals float64       // requests per second, which come whether or not others have left
	Patience time.Duration // the deadline of each request; 0 means none
	Storm    time.Duration // all requests give up together, each time that this has passed; 0 means never

	Log string // the file that the worker writes
}

// An engine is the kind of server that holds the levels.
type engine string

const (
	redisEngine    engine = "redis"
	clusterEngine  engine = "cluster"
	sentinelEngine engine = "sentinel"
	postgresEngine engine = "postgres"
	remoteEngine   engine = "remote" // a buckettest.Memory of the test
)

// unit returns T, the time of one cost unit.
func (p plan) unit() time.Duration { return time.Duration(float64(time.Second) / p.Rate) }

// held returns L, the most cost units that one worker may have leased: two batches. A batch
// is never for more requests than wait, nor longer than longestBatch.
func (p plan) held() int64 {
	batch := max(1, int64(longestBatch.Seconds()*p.Rate))
	if p.Waiters > 0 {
		batch = min(batch, int64(p.Waiters))
	}
	return 2 * batch
}

// longestBatch is how much of the level the shaper leases at once at most, unless round
// trips are long.
const longestBatch = 50 * time.Millisecond

// time returns the time of n cost units.
func (p plan) time(n int64) time.Duration {
	return time.Duration(float64(n) / p.Rate * float64(time.Second))
}

// limits returns the limits of the worker's Shaper.
func (p plan) limits() shaper.Limits {
	depth := p.Depth
	if depth == 0 {
		depth = 10_000 // nobody is refused for the line
	}
	return shaper.Limits{Rate: rate.Limit(p.Rate), Burst: p.Burst, Depth: depth, MaxWait: p.MaxWait, Slack: p.Slack}
}

// options returns the options of the worker's Shaper.
func (p plan) options(b shaper.Bucket, trace *shaper.Trace) []shaper.Option {
	options := []shaper.Option{shaper.WithBucket(b, p.Key), shaper.WithTrace(trace), shaper.WithFallback(p.Fallback), shaper.WithColdGuard(p.Guard),
		shaper.WithPatience(time.Minute)} // longer than any outage here, also on a busy machine
	if p.Version > 0 {
		options = append(options, shaper.WithRateVersion(p.Version))
	}
	return options
}

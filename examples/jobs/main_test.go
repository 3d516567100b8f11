package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"example.com/leakybucket/internal/model"
	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/shaper"
)

const (
	jobs      = 500
	processes = 3

	// slack is longer than a round trip takes on a busy machine, so that it need not depend on that.
	slack = 50 * time.Millisecond

	// clocks is how far two processes may read the clock of the machine differently, and how much is lost
	// as servers read it in microseconds.
	clocks = 20 * time.Microsecond
)

func TestMain(m *testing.M) {
	if len(os.Args) == 5 && os.Args[1] == "work" { // The workers are this program once more.
		if err := work(os.Args[2], os.Args[3], os.Args[4]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// work is one process. It tells the upstream of each departure, and each job then calls it.
func work(queue, address, upstream string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	tell := func(what string) error {
		response, err := http.Post(upstream+what, "", nil)
		if err != nil {
			return err
		}
		return response.Body.Close()
	}
	limits.Slack = slack
	trace := &shaper.Trace{Departed: func(_ context.Context, e shaper.Event) {
		if err := tell(fmt.Sprint("/departed/", e.At.UnixNano())); err != nil {
			panic(err)
		}
	}}
	stats, err := queues[queue].work(ctx, address, func(_ context.Context, job int) error {
		return tell(fmt.Sprint("/job/", job))
	}, shaper.WithTrace(trace))
	return errors.Join(err, tell(fmt.Sprint("/back/", stats.Refused)))
}

// An upstream notes who calls it and when.
type upstream struct {
	URL string

	mu       sync.Mutex
	departed []model.Departure // on the clock of the workers, from 1970 on
	called   []time.Time
	times    map[int]int // how often each job has called
	back     int         // how often a job went back into the queue
}

func newUpstream(t *testing.T) *upstream {
	u := &upstream{times: map[int]int{}}
	mux := http.NewServeMux()
	note := func(pattern string, note func(n int)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			n, err := strconv.Atoi(r.PathValue("n"))
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			u.mu.Lock()
			defer u.mu.Unlock()
			note(n)
		})
	}
	note("/departed/{n}", func(n int) {
		u.departed = append(u.departed, model.Departure{At: time.Duration(n), Cost: 1})
	})
	note("/job/{n}", func(n int) { u.called, u.times[n] = append(u.called, time.Now()), u.times[n]+1 })
	note("/back/{n}", func(n int) { u.back += n })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	u.URL = server.URL
	return u
}

func (u *upstream) calls() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.called)
}

// serve lets three processes work until all jobs have called the upstream, and requires that none is lost, and none early.
func serve(t *testing.T, queue, address string) *upstream {
	t.Helper()
	u := newUpstream(t)
	var all []*servers.Process
	for range processes {
		all = append(all, servers.Start(t, exec.Command(os.Args[0], "work", queue, address, u.URL)))
	}
	all[0].Until(func() bool { return u.calls() >= jobs }, "all jobs have called")
	for _, p := range all {
		require.Zero(t, p.Stop(syscall.SIGTERM), p.Output())
	}

	require.Len(t, u.times, jobs, "no job is lost")
	require.Len(t, u.called, jobs, "each has called once")
	require.Len(t, u.departed, jobs, "a job takes one slot, and one that goes back takes none")
	interval := time.Duration(float64(time.Second) / float64(limits.Rate))
	pace := model.SharedPace{Interval: big.NewRat(int64(interval), 1), Burst: 1, Lateness: slack + clocks}
	worst := pace.Worst(u.departed)
	require.LessOrEqual(t, worst.Excess(), int64(0), worst)
	first := slices.MinFunc(u.departed, func(a, b model.Departure) int { return cmp.Compare(a.At, b.At) }).At
	for i, at := range u.called { // on the clock of the upstream
		require.GreaterOrEqual(t, time.Duration(at.UnixNano())-first, time.Duration(i)*interval-slack-clocks, "call %d is early", i)
	}
	require.Positive(t, u.back, "lines are shorter than the backlog")
	took := time.Duration(u.called[jobs-1].UnixNano()) - first
	require.Less(t, took, 3*jobs*interval, "slots pass unused")
	t.Logf("%s: %d jobs in %v; %d times one went back", queue, jobs, took, u.back)
	return u
}

func TestRiverWorkersShareTheRateAndLoseNoJob(t *testing.T) {
	t.Parallel()
	url := servers.StartPostgres(t).URL
	require.NoError(t, run(t.Context(), jobs, []string{"river", url}, io.Discard))
	u := serve(t, "river", url)

	db, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer db.Close(context.Background())
	var done, snoozes int
	require.NoError(t, db.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE state = 'completed' AND attempt = 1 AND errors IS NULL),
		sum((metadata->>'snoozes')::int) FROM river_job`).Scan(&done, &snoozes))
	require.Equal(t, jobs, done, "a refusal is no attempt and no error")
	require.Equal(t, u.back, snoozes)
	tellsOfItsJobs(t, "river", url)
}

// Half of the jobs are on their last attempt from the start.
func TestAsynqWorkersShareTheRateAndLoseNoJob(t *testing.T) {
	t.Parallel()
	address := servers.StartRedis(t).Addr
	require.NoError(t, run(t.Context(), jobs/2, []string{"asynq", address}, io.Discard))
	client := asynq.NewClient(asynq.RedisClientOpt{Addr: address})
	defer client.Close()
	for i := jobs / 2; i < jobs; i++ {
		_, err := client.Enqueue(asynq.NewTask(callType, []byte(strconv.Itoa(i))), asynq.MaxRetry(0))
		require.NoError(t, err)
	}
	serve(t, "asynq", address)

	inspector := asynq.NewInspector(asynq.RedisClientOpt{Addr: address})
	defer inspector.Close()
	info, err := inspector.GetQueueInfo("default")
	require.NoError(t, err)
	require.Equal(t, jobs, info.ProcessedTotal)
	require.Zero(t, info.FailedTotal, "a refusal is no failure")
	require.Zero(t, info.Size, "nothing is left, and nothing archived")
	tellsOfItsJobs(t, "asynq", address)
}

// tellsOfItsJobs requires of a worker as a reader starts one that it says what it does, and leaves nothing behind.
func tellsOfItsJobs(t *testing.T, queue, address string) {
	t.Helper()
	require.NoError(t, run(t.Context(), 1, []string{queue, address}, io.Discard))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out servers.Output
	ended := make(chan error, 1) // for the one error
	go func() { ended <- run(ctx, 0, []string{queue, address}, &out) }()
	realtime.Until(t, func() bool { return out.String() != "" }, "the job has been done")
	cancel()
	require.NoError(t, <-ended)
	require.Equal(t, "job 0\njobs that left: 1; times that one went back into the queue: 0\n", out.String())
}

func TestWrongArgumentsAreNamed(t *testing.T) {
	for _, args := range [][]string{{}, {"river"}, {"kafka", "127.0.0.1:9092"}, {"asynq", "127.0.0.1:6379", "more"}} {
		require.ErrorContains(t, run(t.Context(), 0, args, io.Discard), fmt.Sprintf("arguments %q: expected river", args))
	}
}

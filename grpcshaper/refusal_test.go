package grpcshaper_test

import (
	"context"
	"errors"
	"io"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"example.com/leakybucket/grpcshaper"
	"example.com/leakybucket/internal/made"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
	"example.com/leakybucket/shaper/shared"
)

// limiter is a Limiter of a function.
type limiter func(ctx context.Context, n int) error

func (f limiter) WaitN(ctx context.Context, n int) error { return f(ctx, n) }

// rejects is a Limiter that refuses each call for a reason.
func rejects(reason error, retryAfter time.Duration) limiter {
	return func(context.Context, int) error { return &shaper.RejectError{Reason: reason, RetryAfter: retryAfter} }
}

// retryDelay returns the RetryDelay of a status, or 0 without a RetryInfo.
func retryDelay(t *testing.T, err error) time.Duration {
	for _, detail := range status.Convert(err).Details() {
		info, ok := detail.(*errdetails.RetryInfo)
		require.True(t, ok, "%v", detail)
		return info.GetRetryDelay().AsDuration()
	}
	return 0
}

// refusedBy calls a server with that Limiter, and returns the answer to the client, and the error
// that an interceptor around ours sees.
func refusedBy(t *testing.T, l shaper.Limiter, ctx context.Context, opts ...grpcshaper.Option) (got error, trailer metadata.MD, seen error) {
	around := func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		answer, err := handler(ctx, request)
		seen = err
		return answer, err
	}
	r := onServer(t, service{}, grpc.ChainUnaryInterceptor(around, grpcshaper.UnaryServerInterceptor(l, opts...)))
	got = r.call(ctx, grpc.Trailer(&trailer))
	synctest.Wait() // A server may still be busy with a call that its client has given up.
	return got, trailer, seen
}

func TestEachRefusalHasItsCodeAndSaysWhenToComeBack(t *testing.T) {
	secret := errors.New("secret of the server")
	for _, test := range []struct {
		name     string
		limiter  shaper.Limiter
		code     codes.Code
		delay    time.Duration
		pushback string
		is       error
	}{
		{"full", rejects(shaper.ErrQueueFull, 1500*time.Microsecond), codes.ResourceExhausted, 1500 * time.Microsecond, "2", shaper.ErrQueueFull},
		{"late", rejects(shaper.ErrTooLate, time.Minute), codes.ResourceExhausted, time.Minute, "60000", shaper.ErrTooLate},
		{"a year", rejects(shaper.ErrTooLate, 365*24*time.Hour), codes.ResourceExhausted, 365 * 24 * time.Hour, "2147483647", shaper.ErrTooLate},
		{"for ever", rejects(shaper.ErrTooLate, math.MaxInt64), codes.ResourceExhausted, math.MaxInt64, "2147483647", shaper.ErrTooLate},
		{"costly", rejects(shaper.ErrTooCostly, 0), codes.ResourceExhausted, 0, "-1", shaper.ErrTooCostly},
		{"closed", rejects(shaper.ErrClosed, time.Second), codes.Unavailable, time.Second, "1000", shaper.ErrClosed},
		{"closed and empty", rejects(shaper.ErrClosed, 0), codes.Unavailable, 0, "", shaper.ErrClosed},
		{"unavailable", rejects(shaper.ErrUnavailable, time.Second), codes.Unavailable, time.Second, "1000", shaper.ErrUnavailable},
		{"not in a RejectError", limiter(func(context.Context, int) error { return shaper.ErrQueueFull }), codes.ResourceExhausted, 0, "", shaper.ErrQueueFull},
		{"unknown", limiter(func(context.Context, int) error { return secret }), codes.Unavailable, 0, "", secret},
		{"a status", limiter(func(context.Context, int) error { return status.Error(codes.PermissionDenied, "no") }), codes.PermissionDenied, 0, "", nil},
		{"cancelled inside", limiter(func(context.Context, int) error { return context.Canceled }), codes.Unavailable, 0, "", context.Canceled},
		{"timeout inside", limiter(func(context.Context, int) error { return context.DeadlineExceeded }), codes.Unavailable, 0, "", context.DeadlineExceeded},
		{"negative", limiter(func(context.Context, int) error { return nil }), codes.Internal, 0, "", shaper.ErrNegativeCost},
		{"no key", grpcshaper.PerKey(made.Group[string](t, "1/s"), func(context.Context, string) (string, error) { return "", secret }), codes.Internal, 0, "", secret},
		{"a key's status", grpcshaper.PerKey(made.Group[string](t, "1/s"), func(context.Context, string) (string, error) {
			return "", status.Error(codes.Unauthenticated, "no API key")
		}), codes.Unauthenticated, 0, "", nil},
		{"no limits", grpcshaper.PerKey(failingGroup(t, &shaper.RejectError{Reason: secret, RetryAfter: 1}), grpcshaper.ByMethod()), codes.Internal, 0, "", secret},
		{"limits' status", grpcshaper.PerKey(failingGroup(t, status.Error(codes.OutOfRange, "secret")), grpcshaper.ByMethod()), codes.Internal, 0, "", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, since func() time.Duration) {
				cost := 1
				if test.name == "negative" {
					cost = -1
				}
				err, trailer, seen := refusedBy(t, test.limiter, t.Context(),
					grpcshaper.WithCost(func(context.Context, string, any) int { return cost }))
				requireCode(t, test.code, err)
				require.Equal(t, test.delay, retryDelay(t, err))
				require.NotContains(t, err.Error(), "secret")
				if test.pushback == "" {
					require.Empty(t, trailer.Get("grpc-retry-pushback-ms"))
				} else {
					require.Equal(t, []string{test.pushback}, trailer.Get("grpc-retry-pushback-ms"))
				}
				if test.is != nil {
					require.ErrorIs(t, seen, test.is)
				}
			})
		})
	}
}

// "Too many calls are waiting already" makes somebody look for a line where there is none.
func TestARefusalSpeaksOfALineOnlyWhereThereIsOne(t *testing.T) {
	for _, row := range []struct {
		limits  shaper.Limits
		block   time.Duration
		message string
	}{
		{shaper.Limits{Rate: 1}, 0, "more calls have come than the limit allows"},
		{shaper.Limits{Rate: 1, Depth: 1}, 0, "too many calls are waiting already"},
		{shaper.Limits{Rate: 1}, time.Minute, "calls are refused for a time, because too many have come"},
	} {
		bubble(t, func(t *testing.T, _ func() time.Duration) {
			s, err := shaper.New(row.limits, shaper.WithBlock(row.block))
			require.NoError(t, err)
			defer s.Close()
			require.NoError(t, s.Wait(t.Context()))
			if row.limits.Depth > 0 {
				go func() { _ = s.Wait(t.Context()) }()
				synctest.Wait()
			}
			err, _, _ = refusedBy(t, s, t.Context())
			require.Equal(t, row.message, status.Convert(err).Message())
		})
	}
}

// failingGroup is a Group whose limits function fails.
func failingGroup(t *testing.T, err error) *shaper.Group[string] {
	return made.GroupBy(t, func(string) (shaper.Limits, error) { return shaper.Limits{}, err })
}

func TestCallThatWouldMissItsDeadlineIsRefusedAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		s := made.Shaper(t, "1 per 10s depth 10")
		require.NoError(t, s.Wait(t.Context()))
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		err, _, seen := refusedBy(t, s, ctx)
		requireCode(t, codes.DeadlineExceeded, err)
		require.Zero(t, since())
		require.ErrorIs(t, seen, shaper.ErrTooLate)
		require.ErrorIs(t, seen, context.DeadlineExceeded)
		// The slot comes in 10 s. The deadline that the server gets is whole: 4 s before it.
		require.Equal(t, 6*time.Second+time.Nanosecond, retryDelay(t, err))
	})
}

func TestCallWhoseDeadlinePassesInTheLineEndsThen(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		s := made.Shaper(t, "inf depth 10 inflight 1")
		release, err := s.Acquire(t.Context(), 1)
		require.NoError(t, err)
		defer release()
		// The deadline is the server's own. With the client's, its cancellation might come
		// first.
		withDeadline := func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			ctx, cancel := context.WithTimeout(ctx, 4*time.Second)
			defer cancel()
			answer, err := handler(ctx, request)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			return answer, err
		}
		r := onServer(t, service{}, grpc.ChainUnaryInterceptor(withDeadline, grpcshaper.UnaryServerInterceptor(s)))
		requireCode(t, codes.DeadlineExceeded, r.call(t.Context()))
		require.Equal(t, 4*time.Second, since())
		require.Zero(t, s.Stats().Waiting)
	})
}

func TestServerSeesThatACallWasCancelledAndNotRefused(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		s, g := made.Shaper(t, "1 per 10s depth 10"), made.Group[string](t, "1 per 10s depth 10")
		for _, l := range []shaper.Limiter{s, grpcshaper.PerKey(g, grpcshaper.ByMethod())} {
			err, _, _ := refusedBy(t, l, t.Context())
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			err, _, seen := refusedBy(t, l, ctx)
			requireCode(t, codes.Canceled, err)
			requireCode(t, codes.Canceled, seen)
			require.ErrorIs(t, seen, context.Canceled)
			require.Zero(t, s.Stats().Waiting+g.Stats().Waiting, "it has left the line at once")
		}
		require.Zero(t, s.Stats().Refused)
		require.EqualValues(t, 1, g.Stats().Abandoned)
	})
}

// A call without a deadline must not hang while the store of a shared bucket is away.
func TestACallInLineIsAnsweredThoughTheStoreIsAway(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		memory := buckettest.NewMemory()
		memory.Fail(func(int, string) buckettest.Fault { return buckettest.FailBefore })
		s := made.Shaper(t, "1/s depth 9", shaper.WithBucket(memory, "key", shared.Options{}))
		err, trailer, seen := refusedBy(t, s, t.Context())
		requireCode(t, codes.Unavailable, err)
		require.ErrorIs(t, seen, shaper.ErrUnavailable)
		require.NotEmpty(t, trailer["grpc-retry-pushback-ms"])
		require.Equal(t, shared.DefaultPatience, since())
	})
}

func TestRetriesOfTheServiceConfigComeWhenTheRefusalSays(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		s := made.Shaper(t, "1 per 10s")
		var served timeline
		r := connect(t, noting(&served, since),
			[]grpc.ServerOption{grpc.UnaryInterceptor(grpcshaper.UnaryServerInterceptor(s))},
			[]grpc.DialOption{grpc.WithDefaultServiceConfig(`{"methodConfig": [{"name": [{}], "retryPolicy": {
				"maxAttempts": 2, "initialBackoff": "0.001s", "maxBackoff": "0.001s", "backoffMultiplier": 1,
				"retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}}]}`)})
		for _, name := range []string{"first", "refused once"} {
			_, err := r.UnaryCall(t.Context(), named(name))
			require.NoError(t, err)
		}
		require.Equal(t, []event{{"first", 0}, {"refused once", 10 * time.Second}}, served.all())
	})
}

func TestClientsRefusedTogetherAreNotAskedToComeBackTogether(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		l := rejects(shaper.ErrQueueFull, time.Second)
		r := onServer(t, service{}, grpc.UnaryInterceptor(grpcshaper.UnaryServerInterceptor(l, grpcshaper.WithRetrySpread(time.Second))))
		delays := map[time.Duration]bool{}
		for range 20 {
			delay := retryDelay(t, r.call(t.Context()))
			require.GreaterOrEqual(t, delay, time.Second)
			require.LessOrEqual(t, delay, 2*time.Second)
			delays[delay] = true
		}
		require.Greater(t, len(delays), 10)
	})
}

// A sum that does not fit would be negative, or a panic that ends the server.
func TestLongTimesAndSpreadsDoNotOverflow(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		for _, retryAfter := range []time.Duration{1, math.MaxInt64 - 1, math.MaxInt64} {
			err, _, _ := refusedBy(t, rejects(shaper.ErrQueueFull, retryAfter), t.Context(), grpcshaper.WithRetrySpread(math.MaxInt64))
			requireCode(t, codes.ResourceExhausted, err)
			require.GreaterOrEqual(t, retryDelay(t, err), retryAfter)
		}
	})
}

func TestRefusedStreamGetsWhatARefusedCallGets(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		s := made.Shaper(t, "1 per 10s depth 1")
		r := onServer(t, service{}, grpc.StreamInterceptor(grpcshaper.StreamServerInterceptor(s)))
		_, err := r.stream(t.Context())
		require.ErrorIs(t, err, io.EOF)
		var waits sync.WaitGroup
		waits.Go(func() {
			if _, err := r.stream(t.Context()); !errors.Is(err, io.EOF) {
				t.Error(err)
			}
		})
		synctest.Wait()
		stream, err := r.stream(t.Context())
		requireCode(t, codes.ResourceExhausted, err)
		require.Equal(t, 10*time.Second, retryDelay(t, err))
		require.Equal(t, []string{"10000"}, stream.Trailer().Get("grpc-retry-pushback-ms"))
		waits.Wait()
		require.Equal(t, 10*time.Second, since())
	})
}

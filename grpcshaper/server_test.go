package grpcshaper_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"

	"example.com/leakybucket/grpcshaper"
	"example.com/leakybucket/internal/made"
	"example.com/leakybucket/shaper"
)

// A timeline notes what happens when.
type timeline struct {
	mu     sync.Mutex
	events []event
}

type event struct {
	what string
	at   time.Duration
}

func (l *timeline) note(what string, at time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, event{what, at})
}

func (l *timeline) all() []event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.events)
}

// named makes the request whose name nameOf returns.
func named(name string) *testgrpc.SimpleRequest {
	return &testgrpc.SimpleRequest{Payload: &testgrpc.Payload{Body: []byte(name)}}
}

func nameOf(request *testgrpc.SimpleRequest) string { return string(request.GetPayload().GetBody()) }

// noting is a service that notes when its unary handler runs.
func noting(l *timeline, since func() time.Duration) service {
	return service{unary: func(_ context.Context, request *testgrpc.SimpleRequest) error {
		l.note(nameOf(request), since())
		return nil
	}}
}

func TestCallIsInFlightUntilItsHandlerReturns(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		s := made.Shaper(t, "inf depth 10 inflight 1")
		var served timeline
		slow := service{
			unary: func(_ context.Context, request *testgrpc.SimpleRequest) error {
				served.note(nameOf(request), since())
				time.Sleep(time.Second)
				if nameOf(request) == "panic" {
					panic("of a handler")
				}
				return nil
			},
			duplex: func(testgrpc.TestService_FullDuplexCallServer) error {
				served.note("stream", since())
				time.Sleep(time.Second)
				return nil
			},
		}
		recovers := func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (answer any, err error) {
			defer func() { _ = recover() }()
			return handler(ctx, request)
		}
		r := onServer(t, slow,
			grpc.ChainUnaryInterceptor(recovers, grpcshaper.UnaryServerInterceptor(s)),
			grpc.StreamInterceptor(grpcshaper.StreamServerInterceptor(s)))

		var calls sync.WaitGroup
		for _, name := range []string{"a", "panic", "stream", "b"} {
			calls.Go(func() {
				if name != "stream" {
					_, _ = r.UnaryCall(t.Context(), named(name)) // After the panic there is no answer to send.
					return
				}
				if _, err := r.stream(t.Context()); !errors.Is(err, io.EOF) {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		calls.Wait()
		require.Equal(t, []event{{"a", 0}, {"panic", time.Second}, {"stream", 2 * time.Second}, {"b", 3 * time.Second}}, served.all())
		require.Zero(t, s.Stats().InFlight)
	})
}

func TestSkippedMethodsAndCallsOfNoCostPassAClosedShaper(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		s := made.Shaper(t, "1/s")
		require.NoError(t, s.Close())
		opts := []grpcshaper.Option{
			grpcshaper.WithSkip(func(method string) bool { return method == "/grpc.testing.TestService/FullDuplexCall" }),
			grpcshaper.WithCost(func(_ context.Context, method string, request any) int {
				require.Equal(t, "/grpc.testing.TestService/UnaryCall", method)
				return len(nameOf(request.(*testgrpc.SimpleRequest)))
			}),
		}
		r := onServer(t, service{},
			grpc.UnaryInterceptor(grpcshaper.UnaryServerInterceptor(s, opts...)),
			grpc.StreamInterceptor(grpcshaper.StreamServerInterceptor(s, opts...)))

		_, err := r.UnaryCall(t.Context(), named("costs"))
		requireCode(t, codes.Unavailable, err)
		_, err = r.UnaryCall(t.Context(), named(""))
		require.NoError(t, err)
		stream, err := r.FullDuplexCall(t.Context())
		require.NoError(t, err)
		_, err = stream.Recv()
		require.ErrorContains(t, err, "EOF")
	})
}

func TestHealthChecksAreThoseOfTheStandardService(t *testing.T) {
	require.True(t, grpcshaper.HealthChecks("/grpc.health.v1.Health/Check"))
	require.True(t, grpcshaper.HealthChecks("/grpc.health.v1.Health/Watch"))
	require.False(t, grpcshaper.HealthChecks("/grpc.health.v1.HealthX/Check"))
	require.False(t, grpcshaper.HealthChecks("/shop.Orders/List"))
}

func TestInterceptorsWithoutALimiterPanicWhenTheyAreMade(t *testing.T) {
	for name, make := range map[string]func(){
		"UnaryServerInterceptor":  func() { grpcshaper.UnaryServerInterceptor(nil) },
		"StreamServerInterceptor": func() { grpcshaper.StreamServerInterceptor(nil) },
		"UnaryClientInterceptor":  func() { grpcshaper.UnaryClientInterceptor(nil) },
		"StreamClientInterceptor": func() { grpcshaper.StreamClientInterceptor(nil) },
		"PerKey needs a Group":    func() { grpcshaper.PerKey(nil, grpcshaper.ByPeer()) },
		"zero and can't be used":  func() { grpcshaper.PerKey(new(shaper.Group[string]), grpcshaper.ByPeer()) },
		"PerKey needs a function": func() { grpcshaper.PerKey(new(shaper.Group[string]), nil) },
	} {
		func() {
			defer func() { require.Contains(t, recover(), name) }()
			make()
		}()
	}
}

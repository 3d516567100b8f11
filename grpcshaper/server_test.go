package grpcshaper_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"example.com/leakybucket/grpcshaper"
	"example.com/leakybucket/internal/realtime"
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

func TestCallsReachTheirHandlersAtTheRateAndInOrder(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		s := newShaper(t, "1 per 2s depth 10")
		var served timeline
		r := onServer(t, noting(&served, since), grpc.UnaryInterceptor(grpcshaper.UnaryServerInterceptor(s)))

		var calls sync.WaitGroup
		for _, name := range []string{"a", "b", "c"} {
			calls.Go(func() {
				if _, err := r.UnaryCall(t.Context(), named(name)); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		calls.Wait()
		require.Equal(t, []event{{"a", 0}, {"b", 2 * time.Second}, {"c", 4 * time.Second}}, served.all())
	})
}

func TestCallIsInFlightUntilItsHandlerReturns(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		s := newShaper(t, "inf depth 10 inflight 1")
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
		s := newShaper(t, "1/s")
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

// sized makes a message of a stream, from the client to the server.
func sized(n int) *testgrpc.StreamingOutputCallRequest {
	return &testgrpc.StreamingOutputCallRequest{Payload: &testgrpc.Payload{Body: make([]byte, n)}}
}

// sizeOf returns the size of a message of a stream, of either direction, as its cost.
func sizeOf(_ context.Context, _ string, message any) int {
	return len(message.(interface{ GetPayload() *testgrpc.Payload }).GetPayload().GetBody())
}

func TestMessagesThatAServerReceivesArePaced(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		s := newShaper(t, "1/s depth 10")
		var got timeline
		r := onServer(t, service{duplex: func(stream testgrpc.TestService_FullDuplexCallServer) error {
			got.note("opened", since())
			for {
				m, err := stream.Recv()
				if err == io.EOF {
					return nil
				}
				require.NoError(t, err)
				got.note(string(rune('0'+len(m.GetPayload().GetBody()))), since())
				require.NoError(t, stream.Send(&testgrpc.StreamingOutputCallResponse{}))
			}
		}}, grpc.StreamInterceptor(grpcshaper.StreamServerInterceptor(s, grpcshaper.WithEachReceived(), grpcshaper.WithCost(sizeOf))))

		stream, err := r.FullDuplexCall(t.Context())
		require.NoError(t, err)
		for _, size := range []int{2, 0, 3, 1} {
			require.NoError(t, stream.Send(sized(size)))
		}
		require.NoError(t, stream.CloseSend())
		for range 4 {
			_, err := stream.Recv()
			require.NoError(t, err)
		}
		_, err = stream.Recv()
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, []event{{"opened", 0}, {"2", 0}, {"0", 0}, {"3", 2 * time.Second}, {"1", 5 * time.Second}}, got.all())
	})
}

func TestMessagesThatAServerSendsArePaced(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		s := newShaper(t, "1/s depth 10")
		r := onServer(t, service{duplex: func(stream testgrpc.TestService_FullDuplexCallServer) error {
			for range 3 {
				if _, err := stream.Recv(); err != nil { // It does not wait.
					return err
				}
			}
			for range 3 {
				if err := stream.Send(&testgrpc.StreamingOutputCallResponse{}); err != nil {
					return err
				}
			}
			return nil
		}}, grpc.StreamInterceptor(grpcshaper.StreamServerInterceptor(s, grpcshaper.WithEachSent())))

		stream, err := r.FullDuplexCall(t.Context())
		require.NoError(t, err)
		for range 3 {
			require.NoError(t, stream.Send(sized(1)))
		}
		for i := range 3 {
			_, err := stream.Recv()
			require.NoError(t, err)
			require.Equal(t, time.Duration(i)*time.Second, since())
		}
		_, err = stream.Recv()
		require.ErrorIs(t, err, io.EOF)
	})
}

// Even a handler that takes no notice of the error must not report success: its client
// would think that all messages have been seen.
func TestMessageThatIsRefusedEndsItsStream(t *testing.T) {
	for _, direction := range []string{"received", "sent"} {
		t.Run(direction, func(t *testing.T) {
			bubble(t, func(t *testing.T, since func() time.Duration) {
				s := newShaper(t, "1 per 10s")
				option := grpcshaper.WithEachReceived()
				if direction == "sent" {
					option = grpcshaper.WithEachSent()
				}
				var errs []error
				r := onServer(t, service{duplex: func(stream testgrpc.TestService_FullDuplexCallServer) error {
					for range 3 {
						var err error
						if direction == "sent" {
							err = stream.Send(&testgrpc.StreamingOutputCallResponse{})
						} else {
							_, err = stream.Recv()
						}
						errs = append(errs, err)
						time.Sleep(8 * time.Second) // The third would be admitted again.
					}
					return nil
				}}, grpc.StreamInterceptor(grpcshaper.StreamServerInterceptor(s, option)))

				stream, err := r.FullDuplexCall(t.Context())
				require.NoError(t, err)
				for range 3 {
					require.NoError(t, stream.Send(sized(1)))
				}
				for err == nil {
					_, err = stream.Recv()
				}
				requireCode(t, codes.ResourceExhausted, err)
				require.Equal(t, 2*time.Second, retryDelay(t, err))
				require.NoError(t, errs[0])
				requireCode(t, codes.ResourceExhausted, errs[1])
				require.Same(t, errs[1], errs[2])
				require.EqualValues(t, 1, s.Stats().Refused)
			})
		})
	}
}

func TestReceivedMessageIsInFlightUntilTheNextIsAskedFor(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		s := newShaper(t, "inf depth 10 inflight 1")
		var got timeline
		r := onServer(t, service{duplex: func(stream testgrpc.TestService_FullDuplexCallServer) error {
			for range 2 {
				if _, err := stream.Recv(); err != nil {
					return err
				}
				got.note("message", since())
				time.Sleep(time.Second) // It works on the message.
			}
			return nil // While it has a message.
		}}, grpc.StreamInterceptor(grpcshaper.StreamServerInterceptor(s, grpcshaper.WithEachReceived())))

		var streams sync.WaitGroup
		for range 2 {
			streams.Go(func() {
				if _, err := r.stream(t.Context(), sized(1), sized(1)); !errors.Is(err, io.EOF) {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		streams.Wait()
		require.Equal(t, []event{{"message", 0}, {"message", time.Second}, {"message", 2 * time.Second}, {"message", 3 * time.Second}}, got.all())
		require.Zero(t, s.Stats().InFlight)
	})
}

func TestMessageWaitsNoLongerThanItsStreamLasts(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		s := newShaper(t, "1 per 10s depth 10")
		require.NoError(t, s.Wait(t.Context()))
		ended := make(chan error, 1)
		r := onServer(t, service{duplex: func(stream testgrpc.TestService_FullDuplexCallServer) error {
			_, err := stream.Recv()
			ended <- err
			return err
		}}, grpc.StreamInterceptor(grpcshaper.StreamServerInterceptor(s, grpcshaper.WithEachReceived())))
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := r.FullDuplexCall(ctx)
		require.NoError(t, err)
		require.NoError(t, stream.Send(sized(1)))
		time.Sleep(time.Second)
		require.Equal(t, 1, s.Stats().Waiting)
		cancel()
		requireCode(t, codes.Canceled, <-ended)
		require.Equal(t, time.Second, since())
		require.Zero(t, s.Stats().Waiting)
	})
}

// Streams end while their messages wait or have just left: by their servers, deadlines and
// callers at once. Each seat must be given back, or the line would stop some day.
func TestNoSeatIsLostWhenStreamsEndInSeveralWaysAtOnce(t *testing.T) {
	for name, opts := range map[string][]grpcshaper.Option{
		"opening":  nil,
		"messages": {grpcshaper.WithEachReceived(), grpcshaper.WithEachSent()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, server := newShaper(t, "inf depth 1000 inflight 6"), newShaper(t, "inf depth 1000 inflight 8")
			serve := func(stream testgrpc.TestService_FullDuplexCallServer) error {
				for range 1 + rand.IntN(4) {
					if _, err := stream.Recv(); err != nil {
						return err
					}
					if err := stream.Send(&testgrpc.StreamingOutputCallResponse{}); err != nil {
						return err
					}
				}
				return status.Error(codes.Aborted, "enough")
			}
			r := connect(t, service{duplex: serve},
				[]grpc.ServerOption{grpc.StreamInterceptor(grpcshaper.StreamServerInterceptor(server, opts...))},
				[]grpc.DialOption{grpc.WithStreamInterceptor(grpcshaper.StreamClientInterceptor(client, opts...))})

			var answers atomic.Int64
			var callers sync.WaitGroup
			for range 10 {
				callers.Go(func() {
					for i := range 10 {
						patience := time.Hour // It ends by its server.
						if i%2 > 0 {
							patience = 100 * time.Microsecond << rand.IntN(8)
						}
						ctx, cancel := context.WithTimeout(t.Context(), patience)
						stream, err := r.FullDuplexCall(ctx)
						if err != nil {
							cancel()
							continue
						}
						callers.Go(func() {
							for stream.Send(sized(4096)) == nil {
							}
						})
						for {
							if _, err := stream.Recv(); err != nil {
								break
							}
							answers.Add(1)
						}
						cancel()
					}
				})
			}
			callers.Wait()
			require.Positive(t, answers.Load())
			idle := func() bool {
				c, s := client.Stats(), server.Stats()
				return c.InFlight+c.Waiting+s.InFlight+s.Waiting == 0
			}
			realtime.Until(t, idle, "no message and no call is left")
		})
	}
}

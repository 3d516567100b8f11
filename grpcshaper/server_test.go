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
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

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

// The ends are those that the comment of grpc.ClientConn.NewStream names, each without the
// others.
func TestStreamIsInFlightUntilItEndsInAnyWay(t *testing.T) {
	untilCancelled := func(stream testgrpc.TestService_FullDuplexCallServer) error {
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	type stream = testgrpc.TestService_FullDuplexCallClient
	for _, test := range []struct {
		name   string
		duplex func(testgrpc.TestService_FullDuplexCallServer) error
		opts   []grpc.CallOption
		end    func(t *testing.T, r rig, s stream, cancel func())
	}{
		{"the connection is closed", untilCancelled, nil, func(t *testing.T, r rig, _ stream, _ func()) {
			require.NoError(t, r.conn.Close())
		}},
		{"the context is cancelled", untilCancelled, nil, func(_ *testing.T, _ rig, _ stream, cancel func()) { cancel() }},
		{"the deadline passes", untilCancelled, nil, func(*testing.T, rig, stream, func()) { time.Sleep(time.Hour) }},
		{"Recv says io.EOF", nil, nil, func(t *testing.T, _ rig, s stream, _ func()) {
			_, err := s.Recv()
			require.ErrorIs(t, err, io.EOF)
		}},
		{"Recv fails", func(testgrpc.TestService_FullDuplexCallServer) error { return status.Error(codes.Aborted, "no") }, nil,
			func(t *testing.T, _ rig, s stream, _ func()) {
				_, err := s.Recv()
				requireCode(t, codes.Aborted, err)
			}},
		{"Send fails", untilCancelled, []grpc.CallOption{grpc.MaxCallSendMsgSize(10)}, func(t *testing.T, _ rig, s stream, _ func()) {
			requireCode(t, codes.ResourceExhausted, s.Send(sized(100)))
		}},
		{"Recv fails for its size", func(s testgrpc.TestService_FullDuplexCallServer) error {
			return s.Send(&testgrpc.StreamingOutputCallResponse{Payload: &testgrpc.Payload{Body: make([]byte, 100)}})
		}, []grpc.CallOption{grpc.MaxCallRecvMsgSize(10)}, func(t *testing.T, _ rig, s stream, _ func()) {
			_, err := s.Recv()
			requireCode(t, codes.ResourceExhausted, err)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, since func() time.Duration) {
				l := made.Shaper(t, "inf inflight 1")
				r := onClient(t, service{duplex: test.duplex}, grpc.WithStreamInterceptor(grpcshaper.StreamClientInterceptor(l)))
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				s, err := r.FullDuplexCall(ctx, test.opts...)
				require.NoError(t, err)
				if test.name != "Send fails" {
					require.NoError(t, s.CloseSend())
				}
				synctest.Wait()
				require.Equal(t, 1, l.Stats().InFlight, "CloseSend does not end a stream")
				_, err = r.FullDuplexCall(t.Context())
				requireCode(t, codes.ResourceExhausted, err)

				test.end(t, r, s, cancel)
				synctest.Wait()
				require.Zero(t, l.Stats().InFlight)
			})
		})
	}
}

// An interceptor behind ours may return a stream of its own, and gRPC tells nothing of its end.
type madeUp struct {
	grpc.ClientStream
	header, send, receive error
}

func (m madeUp) Header() (metadata.MD, error) { return nil, m.header }
func (m madeUp) SendMsg(any) error            { return m.send }
func (m madeUp) RecvMsg(any) error            { return m.receive }

// opening opens a stream through an interceptor whose streamer does as open says.
func opening(ctx context.Context, l shaper.Limiter, desc *grpc.StreamDesc, open func() (grpc.ClientStream, error)) (grpc.ClientStream, error) {
	return grpcshaper.StreamClientInterceptor(l)(ctx, desc, nil, "/a.B/C",
		func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
			return open()
		})
}

func TestStreamOfAnotherInterceptorIsInFlightUntilItsEnd(t *testing.T) {
	wrong := errors.New("wrong")
	oneAnswer, many := &grpc.StreamDesc{ClientStreams: true}, &grpc.StreamDesc{ServerStreams: true}
	for _, test := range []struct {
		name   string
		desc   *grpc.StreamDesc
		stream madeUp
		call   func(grpc.ClientStream) error
		after  int // in flight
	}{
		{"Header", many, madeUp{}, func(s grpc.ClientStream) error { _, err := s.Header(); return err }, 1},
		{"Header fails", many, madeUp{header: wrong}, func(s grpc.ClientStream) error { _, err := s.Header(); return err }, 0},
		{"SendMsg", many, madeUp{}, func(s grpc.ClientStream) error { return s.SendMsg(nil) }, 1},
		{"SendMsg fails", many, madeUp{send: wrong}, func(s grpc.ClientStream) error { return s.SendMsg(nil) }, 0},
		{"SendMsg says io.EOF", many, madeUp{send: io.EOF}, func(s grpc.ClientStream) error { return s.SendMsg(nil) }, 1},
		{"RecvMsg of one", oneAnswer, madeUp{}, func(s grpc.ClientStream) error { return s.RecvMsg(nil) }, 0},
		{"RecvMsg of many", many, madeUp{}, func(s grpc.ClientStream) error { return s.RecvMsg(nil) }, 1},
		{"RecvMsg fails", many, madeUp{receive: wrong}, func(s grpc.ClientStream) error { return s.RecvMsg(nil) }, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, since func() time.Duration) {
				l := made.Shaper(t, "inf inflight 1")
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				s, err := opening(ctx, l, test.desc, func() (grpc.ClientStream, error) { return test.stream, nil })
				require.NoError(t, err)
				_ = test.call(s)
				require.Equal(t, test.after, l.Stats().InFlight)
				cancel()
				synctest.Wait()
				require.Zero(t, l.Stats().InFlight)
			})
		})
	}
}

func TestStreamThatCannotBeOpenedIsNotInFlight(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		l := made.Shaper(t, "inf inflight 1")
		wrong := errors.New("wrong")
		_, err := opening(t.Context(), l, &grpc.StreamDesc{}, func() (grpc.ClientStream, error) { return nil, wrong })
		require.Equal(t, wrong, err)
		require.Zero(t, l.Stats().InFlight)
		require.PanicsWithValue(t, "of a streamer", func() {
			_, _ = opening(t.Context(), l, &grpc.StreamDesc{}, func() (grpc.ClientStream, error) { panic("of a streamer") })
		})
		require.Zero(t, l.Stats().InFlight)
	})
}

// The options of a call may be in a slice that the program uses for other calls as well.
func TestOptionsOfTheCallerAreNotOverwritten(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		r := onClient(t, service{}, grpc.WithStreamInterceptor(grpcshaper.StreamClientInterceptor(made.Shaper(t, "inf inflight 1"))))
		opts := append(make([]grpc.CallOption, 0, 8), grpc.WaitForReady(true))
		_, err := r.FullDuplexCall(t.Context(), opts...)
		require.NoError(t, err)
		require.Nil(t, opts[:2][1])
	})
}

func TestClientSendsCallsAtTheRateAndInOrder(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		s := made.Shaper(t, "1 per 2s depth 10")
		var served timeline
		r := onClient(t, service{
			unary: noting(&served, since).unary,
			duplex: func(testgrpc.TestService_FullDuplexCallServer) error {
				served.note("stream", since())
				return nil
			},
		}, grpc.WithUnaryInterceptor(grpcshaper.UnaryClientInterceptor(s)), grpc.WithStreamInterceptor(grpcshaper.StreamClientInterceptor(s)))

		var calls sync.WaitGroup
		for _, name := range []string{"a", "stream", "c"} {
			calls.Go(func() {
				if name == "stream" {
					if _, err := r.stream(t.Context()); !errors.Is(err, io.EOF) {
						t.Error(err)
					}
				} else if _, err := r.UnaryCall(t.Context(), named(name)); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		calls.Wait()
		require.Equal(t, []event{{"a", 0}, {"stream", 2 * time.Second}, {"c", 4 * time.Second}}, served.all())
	})
}

func TestClientIsToldWhyACallWasNotSent(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		s := made.Shaper(t, "1 per 10s")
		sent := 0
		count := func() error { sent++; return nil }
		r := onClient(t, service{
			unary:  func(context.Context, *testgrpc.SimpleRequest) error { return count() },
			duplex: func(testgrpc.TestService_FullDuplexCallServer) error { return count() },
		}, grpc.WithUnaryInterceptor(grpcshaper.UnaryClientInterceptor(s)), grpc.WithStreamInterceptor(grpcshaper.StreamClientInterceptor(s)))
		require.NoError(t, r.call(t.Context()))

		for name, call := range map[string]func(context.Context) error{
			"unary":  func(ctx context.Context) error { return r.call(ctx) },
			"stream": func(ctx context.Context) error { _, err := r.FullDuplexCall(ctx); return err },
		} {
			err := call(t.Context())
			requireCode(t, codes.ResourceExhausted, err)
			require.ErrorIs(t, err, shaper.ErrQueueFull, name)
			refused, ok := errors.AsType[*shaper.RejectError](err)
			require.True(t, ok)
			require.Equal(t, 10*time.Second, refused.RetryAfter)
			require.Equal(t, 10*time.Second, retryDelay(t, err))

			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			err = call(ctx)
			requireCode(t, codes.Canceled, err)
			require.ErrorIs(t, err, context.Canceled)
		}
		require.Equal(t, 1, sent)
	})
}

func TestClientKeysCallsByMethodAndByWhatTheySend(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		l := grpcshaper.PerKey(made.Group[string](t, "1 per 10s"), grpcshaper.By(grpcshaper.ByMethod(), grpcshaper.ByOutgoingMetadata("tenant")))
		skip := grpcshaper.WithSkip(func(method string) bool { return method == "/grpc.testing.TestService/EmptyCall" })
		r := onClient(t, service{}, grpc.WithUnaryInterceptor(grpcshaper.UnaryClientInterceptor(l, skip)),
			grpc.WithStreamInterceptor(grpcshaper.StreamClientInterceptor(l)))
		require.NoError(t, r.call(of(t, "acme")))
		require.NoError(t, r.call(of(t, "other")))
		_, err := r.FullDuplexCall(of(t, "acme"))
		require.NoError(t, err)
		requireCode(t, codes.ResourceExhausted, r.call(of(t, "acme")))
		_, err = r.FullDuplexCall(of(t, "acme"))
		requireCode(t, codes.ResourceExhausted, err)
		for range 2 {
			_, err := r.EmptyCall(of(t, "acme"), &testgrpc.Empty{})
			requireCode(t, codes.Unimplemented, err) // The test's server has no such method, but was asked.
		}
	})
}

func TestClientRefusesCallsWhoseKeyFails(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		l := grpcshaper.PerKey(made.Group[string](t, "1/s"), grpcshaper.ByOutgoingMetadata("a b"))
		r := onClient(t, service{}, grpc.WithUnaryInterceptor(grpcshaper.UnaryClientInterceptor(l)),
			grpc.WithStreamInterceptor(grpcshaper.StreamClientInterceptor(l)))
		err := r.call(t.Context())
		requireCode(t, codes.Internal, err)
		require.ErrorContains(t, err, `name is "a b"`, "the caller is the program itself")
		_, err = r.FullDuplexCall(t.Context())
		requireCode(t, codes.Internal, err)
	})
}

// A health check without the metadata that others have must not fail.
func TestACallOfNoCostNeedsNoKey(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		l := grpcshaper.PerKey(made.Group[string](t, "1/s"), grpcshaper.ByMetadata("a b"))
		free := grpcshaper.WithCost(func(context.Context, string, any) int { return 0 })
		r := connect(t, service{}, []grpc.ServerOption{
			grpc.UnaryInterceptor(grpcshaper.UnaryServerInterceptor(l, free)),
			grpc.StreamInterceptor(grpcshaper.StreamServerInterceptor(l, free)),
		}, []grpc.DialOption{
			grpc.WithUnaryInterceptor(grpcshaper.UnaryClientInterceptor(l, free)),
			grpc.WithStreamInterceptor(grpcshaper.StreamClientInterceptor(l, free)),
		})
		require.NoError(t, r.call(t.Context()))
		_, err := r.stream(t.Context())
		require.Equal(t, io.EOF, err)
	})
}

// refusing returns the status of a server that refuses.
func refusing(code codes.Code, delays ...time.Duration) error {
	st := status.New(code, "refused")
	for _, delay := range delays {
		st, _ = st.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(delay)})
	}
	return st.Err()
}

func TestRefusalOfTheServerHoldsTheLine(t *testing.T) {
	for _, test := range []struct {
		name string
		says error
		opts []grpcshaper.Option
		want time.Duration // until the next call is sent
	}{
		{"exhausted", refusing(codes.ResourceExhausted, 7*time.Second), nil, 7 * time.Second},
		{"unavailable", refusing(codes.Unavailable, 7*time.Second), nil, 7 * time.Second},
		{"long", refusing(codes.ResourceExhausted, time.Hour), nil, time.Minute},
		{"bounded", refusing(codes.ResourceExhausted, time.Hour), []grpcshaper.Option{grpcshaper.WithMaxHold(3 * time.Second)}, 3 * time.Second},
		{"switched off", refusing(codes.ResourceExhausted, 7*time.Second), []grpcshaper.Option{grpcshaper.WithMaxHold(0)}, 0},
		{"says no time", refusing(codes.ResourceExhausted), nil, 0},
		{"a time of 0", refusing(codes.ResourceExhausted, 0), nil, 0},
		{"a negative time", refusing(codes.ResourceExhausted, -time.Second), nil, 0},
		{"another code", refusing(codes.Aborted, 7*time.Second), nil, 0},
		{"success", nil, nil, 0},
	} {
		for _, kind := range []string{"unary", "stream", "each message"} {
			t.Run(test.name+"/"+kind, func(t *testing.T) {
				bubble(t, func(t *testing.T, since func() time.Duration) {
					s := made.Shaper(t, "inf depth 10 inflight 5")
					says := test.says
					var served timeline
					answer := func() error {
						served.note("", since())
						err := says
						says = nil
						return err
					}
					opts := test.opts
					if kind == "each message" {
						opts = append(opts, grpcshaper.WithEachSent())
					}
					r := onClient(t, service{
						unary: func(context.Context, *testgrpc.SimpleRequest) error { return answer() },
						duplex: func(stream testgrpc.TestService_FullDuplexCallServer) error {
							if _, err := stream.Recv(); err != nil {
								return err
							}
							return answer()
						},
					}, grpc.WithUnaryInterceptor(grpcshaper.UnaryClientInterceptor(s, opts...)),
						grpc.WithStreamInterceptor(grpcshaper.StreamClientInterceptor(s, opts...)))
					for range 2 {
						if kind == "unary" {
							_ = r.call(t.Context())
							continue
						}
						stream, err := r.FullDuplexCall(t.Context())
						require.NoError(t, err)
						require.NoError(t, stream.Send(sized(1)))
						_, err = stream.Recv()
						require.Error(t, err)
					}
					require.Equal(t, []event{{"", 0}, {"", test.want}}, served.all())
					require.Zero(t, s.Stats().InFlight)
				})
			})
		}
	}
}

// The refusal of an inner interceptor is not the server's: the outer line, say of all
// tenants, must not stop because one of them is over its limit.
func TestRefusalOfAnInnerInterceptorDoesNotHoldTheOuterLine(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		outer, inner := made.Shaper(t, "inf depth 10"), made.Shaper(t, "1 per 10s")
		r := onClient(t, service{}, grpc.WithChainUnaryInterceptor(grpcshaper.UnaryClientInterceptor(outer), grpcshaper.UnaryClientInterceptor(inner)))
		require.NoError(t, r.call(t.Context()))
		requireCode(t, codes.ResourceExhausted, r.call(t.Context()))
		require.Zero(t, outer.Stats().HeldUntil)
	})
}

func TestHoldIsThatOfTheKey(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		g := made.Group[string](t, "inf depth 10 inflight 5")
		r := onClient(t, service{unary: func(ctx context.Context, _ *testgrpc.SimpleRequest) error {
			return refusing(codes.ResourceExhausted, 7*time.Second)
		}}, grpc.WithUnaryInterceptor(grpcshaper.UnaryClientInterceptor(grpcshaper.PerKey(g, grpcshaper.ByOutgoingMetadata("tenant")))))
		requireCode(t, codes.ResourceExhausted, r.call(of(t, "acme")))
		requireCode(t, codes.ResourceExhausted, r.call(of(t, "other")))
		require.Zero(t, since())
		requireCode(t, codes.ResourceExhausted, r.call(of(t, "acme")))
		require.Equal(t, 7*time.Second, since())
	})
}

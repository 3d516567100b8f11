package grpcshaper_test

import (
	"context"
	"errors"
	"io"
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
	"example.com/leakybucket/shaper"
)

func TestClientSendsCallsAtTheRateAndInOrder(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		s := newShaper(t, "1 per 2s depth 10")
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
		s := newShaper(t, "1 per 10s")
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
		l := grpcshaper.PerKey(newGroup(t, "1 per 10s"), grpcshaper.By(grpcshaper.ByMethod(), grpcshaper.ByOutgoingMetadata("tenant")))
		skip := grpcshaper.WithSkip(func(method string) bool { return method == "/grpc.testing.TestService/EmptyCall" })
		r := onClient(t, service{}, grpc.WithUnaryInterceptor(grpcshaper.UnaryClientInterceptor(l, skip)),
			grpc.WithStreamInterceptor(grpcshaper.StreamClientInterceptor(l)))
		of := func(tenant string) context.Context {
			return metadata.AppendToOutgoingContext(t.Context(), "tenant", tenant)
		}
		require.NoError(t, r.call(of("acme")))
		require.NoError(t, r.call(of("other")))
		_, err := r.FullDuplexCall(of("acme"))
		require.NoError(t, err)
		requireCode(t, codes.ResourceExhausted, r.call(of("acme")))
		_, err = r.FullDuplexCall(of("acme"))
		requireCode(t, codes.ResourceExhausted, err)
		for range 2 {
			_, err := r.EmptyCall(of("acme"), &testgrpc.Empty{})
			requireCode(t, codes.Unimplemented, err) // The test's server has no such method, but was asked.
		}
	})
}

func TestClientRefusesCallsWhoseKeyFails(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		l := grpcshaper.PerKey(newGroup(t, "1/s"), grpcshaper.ByOutgoingMetadata("a b"))
		r := onClient(t, service{}, grpc.WithUnaryInterceptor(grpcshaper.UnaryClientInterceptor(l)),
			grpc.WithStreamInterceptor(grpcshaper.StreamClientInterceptor(l)))
		err := r.call(t.Context())
		requireCode(t, codes.Internal, err)
		require.ErrorContains(t, err, `name is "a b"`, "the caller is the program itself")
		_, err = r.FullDuplexCall(t.Context())
		requireCode(t, codes.Internal, err)
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
					s := newShaper(t, "inf depth 10 inflight 5")
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
		outer, inner := newShaper(t, "inf depth 10"), newShaper(t, "1 per 10s")
		r := onClient(t, service{}, grpc.WithChainUnaryInterceptor(grpcshaper.UnaryClientInterceptor(outer), grpcshaper.UnaryClientInterceptor(inner)))
		require.NoError(t, r.call(t.Context()))
		requireCode(t, codes.ResourceExhausted, r.call(t.Context()))
		require.Zero(t, outer.Stats().HeldUntil)
	})
}

func TestHoldIsThatOfTheKey(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		g := newGroup(t, "inf depth 10 inflight 5")
		r := onClient(t, service{unary: func(ctx context.Context, _ *testgrpc.SimpleRequest) error {
			return refusing(codes.ResourceExhausted, 7*time.Second)
		}}, grpc.WithUnaryInterceptor(grpcshaper.UnaryClientInterceptor(grpcshaper.PerKey(g, grpcshaper.ByOutgoingMetadata("tenant")))))
		of := func(tenant string) context.Context {
			return metadata.AppendToOutgoingContext(t.Context(), "tenant", tenant)
		}
		requireCode(t, codes.ResourceExhausted, r.call(of("acme")))
		requireCode(t, codes.ResourceExhausted, r.call(of("other")))
		require.Zero(t, since())
		requireCode(t, codes.ResourceExhausted, r.call(of("acme")))
		require.Equal(t, 7*time.Second, since())
	})
}

// oneInFlight connects a client that may have one stream in flight. It returns the number
// in flight, when all is still.
func oneInFlight(t *testing.T, s service, opts ...grpc.DialOption) (r rig, inFlight func() int) {
	l := newShaper(t, "inf inflight 1")
	r = onClient(t, s, append(opts, grpc.WithChainStreamInterceptor(grpcshaper.StreamClientInterceptor(l)))...)
	return r, func() int {
		synctest.Wait()
		return l.Stats().InFlight
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
				r, inFlight := oneInFlight(t, service{duplex: test.duplex})
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				s, err := r.FullDuplexCall(ctx, test.opts...)
				require.NoError(t, err)
				if test.name != "Send fails" {
					require.NoError(t, s.CloseSend())
				}
				require.Equal(t, 1, inFlight(), "CloseSend does not end a stream")
				_, err = r.FullDuplexCall(t.Context())
				requireCode(t, codes.ResourceExhausted, err)

				test.end(t, r, s, cancel)
				require.Zero(t, inFlight())
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
				l := newShaper(t, "inf inflight 1")
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				s, err := grpcshaper.StreamClientInterceptor(l)(ctx, test.desc, nil, "/a.B/C",
					func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
						return test.stream, nil
					})
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
		l := newShaper(t, "inf inflight 1")
		open := func(streamer grpc.Streamer) error {
			_, err := grpcshaper.StreamClientInterceptor(l)(t.Context(), &grpc.StreamDesc{}, nil, "/a.B/C", streamer)
			return err
		}
		wrong := errors.New("wrong")
		require.Equal(t, wrong, open(func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
			return nil, wrong
		}))
		require.Zero(t, l.Stats().InFlight)
		require.PanicsWithValue(t, "of a streamer", func() {
			_ = open(func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
				panic("of a streamer")
			})
		})
		require.Zero(t, l.Stats().InFlight)
	})
}

// The options of a call may be in a slice that the program uses for other calls as well.
func TestOptionsOfTheCallerAreNotOverwritten(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		r, _ := oneInFlight(t, service{})
		opts := append(make([]grpc.CallOption, 0, 8), grpc.WaitForReady(true))
		_, err := r.FullDuplexCall(t.Context(), opts...)
		require.NoError(t, err)
		require.Nil(t, opts[:2][1])
	})
}

// echo answers each message with one of the same size.
func echo(stream testgrpc.TestService_FullDuplexCallServer) error {
	for {
		m, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err = stream.Send(&testgrpc.StreamingOutputCallResponse{Payload: m.GetPayload()}); err != nil {
			return err
		}
	}
}

func TestMessagesOfAClientArePaced(t *testing.T) {
	for _, test := range []struct {
		name       string
		opts       []grpcshaper.Option
		sent, took []time.Duration // the ends of Send and Recv
	}{
		{"sent", []grpcshaper.Option{grpcshaper.WithEachSent()}, []time.Duration{0, 2, 5}, []time.Duration{5, 5, 5}},
		{"received", []grpcshaper.Option{grpcshaper.WithEachReceived()}, []time.Duration{0, 0, 0}, []time.Duration{0, 2, 5}},
		{"both", []grpcshaper.Option{grpcshaper.WithEachSent(), grpcshaper.WithEachReceived()}, []time.Duration{0, 2, 5}, []time.Duration{6, 8, 11}},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, since func() time.Duration) {
				l := newShaper(t, "1/s depth 10")
				r := onClient(t, service{duplex: echo}, grpc.WithStreamInterceptor(
					grpcshaper.StreamClientInterceptor(l, append(test.opts, grpcshaper.WithCost(sizeOf))...)))
				s, err := r.FullDuplexCall(t.Context())
				require.NoError(t, err)
				for i, size := range []int{2, 3, 1} {
					require.NoError(t, s.Send(sized(size)))
					require.Equal(t, test.sent[i]*time.Second, since())
				}
				for i := range 3 {
					_, err := s.Recv()
					require.NoError(t, err)
					require.Equal(t, test.took[i]*time.Second, since())
				}
				require.NoError(t, s.CloseSend())
				_, err = s.Recv()
				require.ErrorIs(t, err, io.EOF)
			})
		})
	}
}

// The only message of a stream comes with its end, which must not refuse it.
func TestOnlyMessageOfAStreamIsPacedToo(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		l := newShaper(t, "1 per 5s depth 10 inflight 1")
		r := onClient(t, service{}, grpc.WithStreamInterceptor(grpcshaper.StreamClientInterceptor(l, grpcshaper.WithEachReceived())))
		for i := range 3 {
			s, err := r.StreamingInputCall(t.Context())
			require.NoError(t, err)
			_, err = s.CloseAndRecv()
			require.NoError(t, err)
			require.Equal(t, time.Duration(i)*5*time.Second, since())
			require.Zero(t, l.Stats().InFlight, "the stream has ended")
		}
	})
}

// As the comment of grpc.ClientStream says, an error of SendMsg or RecvMsg means that the
// stream is aborted: a caller who then forgets it must not leak it.
func TestMessageOfAClientThatIsRefusedAbortsTheStream(t *testing.T) {
	for _, direction := range []string{"received", "sent"} {
		t.Run(direction, func(t *testing.T) {
			bubble(t, func(t *testing.T, since func() time.Duration) {
				l := newShaper(t, "1 per 10s")
				option := grpcshaper.WithEachReceived()
				if direction == "sent" {
					option = grpcshaper.WithEachSent()
				}
				ended := make(chan error, 1)
				r := onClient(t, service{duplex: func(stream testgrpc.TestService_FullDuplexCallServer) error {
					err := echo(stream)
					ended <- err
					return err
				}}, grpc.WithStreamInterceptor(grpcshaper.StreamClientInterceptor(l, option)))
				s, err := r.FullDuplexCall(t.Context())
				require.NoError(t, err)
				var refused error
				if direction == "sent" {
					require.NoError(t, s.Send(sized(1)))
					refused = s.Send(sized(1))
				} else {
					require.NoError(t, s.Send(sized(1)))
					require.NoError(t, s.Send(sized(1)))
					_, err = s.Recv()
					require.NoError(t, err)
					_, refused = s.Recv()
				}
				requireCode(t, codes.ResourceExhausted, refused)
				require.ErrorIs(t, refused, shaper.ErrQueueFull)
				requireCode(t, codes.Canceled, <-ended)
				require.ErrorIs(t, s.Send(sized(1)), io.EOF)
				for err = nil; err == nil; { // The first answer may have come already.
					_, err = s.Recv()
				}
				require.Same(t, refused, err)
				require.EqualValues(t, 1, l.Stats().Refused)
			})
		})
	}
}

func TestMessageLeavesTheLineWhenItsStreamEnds(t *testing.T) {
	for _, test := range []struct {
		name string
		end  func(r rig, cancel func())
		want error // of Send
	}{
		{"by its server", func(rig, func()) {}, io.EOF},
		{"by the connection", func(r rig, _ func()) { _ = r.conn.Close() }, io.EOF},
		{"by the caller", func(_ rig, cancel func()) { cancel() }, context.Canceled},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, since func() time.Duration) {
				l := newShaper(t, "1 per 1min depth 10")
				r := onClient(t, service{duplex: func(stream testgrpc.TestService_FullDuplexCallServer) error {
					select {
					case <-time.After(2 * time.Second):
						return status.Error(codes.Aborted, "enough")
					case <-stream.Context().Done():
						return nil
					}
				}}, grpc.WithStreamInterceptor(grpcshaper.StreamClientInterceptor(l, grpcshaper.WithEachSent())))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				s, err := r.FullDuplexCall(ctx)
				require.NoError(t, err)
				require.NoError(t, s.Send(sized(1)))
				received := make(chan error, 1)
				go func() {
					_, err := s.Recv()
					received <- err
				}()
				sent := make(chan error, 1)
				go func() { sent <- s.Send(sized(1)) }()
				synctest.Wait()
				require.Equal(t, 1, l.Stats().Waiting)
				time.AfterFunc(time.Second, func() { test.end(r, cancel) })
				require.ErrorIs(t, <-sent, test.want)
				require.Zero(t, l.Stats().Waiting)
				require.Error(t, <-received)
				require.LessOrEqual(t, since(), 2*time.Second)
			})
		})
	}
}

func TestReceivedMessageOfAClientIsInFlightUntilTheNextOrTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		l := newShaper(t, "inf depth 10 inflight 1")
		r := onClient(t, service{duplex: echo}, grpc.WithStreamInterceptor(grpcshaper.StreamClientInterceptor(l, grpcshaper.WithEachReceived())))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s, err := r.FullDuplexCall(ctx)
		require.NoError(t, err)
		for range 2 {
			require.NoError(t, s.Send(sized(1)))
			_, err = s.Recv()
			require.NoError(t, err)
			require.Equal(t, 1, l.Stats().InFlight)
		}
		cancel()
		synctest.Wait()
		require.Zero(t, l.Stats().InFlight)
	})
}

// A stream that waited for a seat while it held the only one would wait for ever.
func TestStreamThatAnswersWhatItReceivesNeedsOneSeat(t *testing.T) {
	both := []grpcshaper.Option{grpcshaper.WithEachReceived(), grpcshaper.WithEachSent()}
	bubble(t, func(t *testing.T, since func() time.Duration) {
		client, server := newShaper(t, "1/s depth 10 inflight 1"), newShaper(t, "inf depth 10 inflight 1")
		r := connect(t, service{duplex: echo},
			[]grpc.ServerOption{grpc.StreamInterceptor(grpcshaper.StreamServerInterceptor(server, both...))},
			[]grpc.DialOption{grpc.WithStreamInterceptor(grpcshaper.StreamClientInterceptor(client, both...))})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s, err := r.FullDuplexCall(ctx)
		require.NoError(t, err)
		for i := range 3 {
			require.NoError(t, s.Send(sized(1)))
			_, err = s.Recv()
			require.NoError(t, err)
			require.Equal(t, time.Duration(2*i+1)*time.Second, since())
		}
		require.NoError(t, s.CloseSend())
		_, err = s.Recv()
		require.ErrorIs(t, err, io.EOF)
		require.Zero(t, client.Stats().InFlight)
		require.Zero(t, server.Stats().InFlight)
	})
}

package grpcshaper_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
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
	"example.com/leakybucket/internal/made"
	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper"
)

// sized makes a message of a stream, from the client to the server.
func sized(n int) *testgrpc.StreamingOutputCallRequest {
	return &testgrpc.StreamingOutputCallRequest{Payload: &testgrpc.Payload{Body: make([]byte, n)}}
}

// sizeOf returns the size of a message of a stream, of either direction, as its cost.
func sizeOf(_ context.Context, _ string, message any) int {
	return len(message.(interface{ GetPayload() *testgrpc.Payload }).GetPayload().GetBody())
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

// each returns the options by the direction in which messages wait.
func each() map[string]grpcshaper.Option {
	return map[string]grpcshaper.Option{"received": grpcshaper.WithEachReceived(), "sent": grpcshaper.WithEachSent()}
}

// Each message waits as long as the messages before it cost, and the opening of the stream costs
// nothing. Whether a server receives or sends late is the same to its client.
func TestMessagesArePaced(t *testing.T) {
	received, sent, costs := grpcshaper.WithEachReceived(), grpcshaper.WithEachSent(), grpcshaper.WithCost(sizeOf)
	for _, test := range []struct {
		name       string
		server     []grpcshaper.Option // nil: the server has no interceptor; the same for the client
		client     []grpcshaper.Option
		sent, took []time.Duration // the ends of the client's Send and Recv, in seconds
	}{
		{"sent by a client", nil, []grpcshaper.Option{costs, sent}, []time.Duration{0, 0, 2, 5}, []time.Duration{5, 5, 5, 5}},
		{"received by a client", nil, []grpcshaper.Option{costs, received}, []time.Duration{0, 0, 0, 0}, []time.Duration{0, 0, 2, 5}},
		{"both by a client", nil, []grpcshaper.Option{costs, sent, received}, []time.Duration{0, 0, 2, 5}, []time.Duration{6, 6, 8, 11}},
		{"sent by a server", []grpcshaper.Option{costs, sent}, nil, []time.Duration{0, 0, 0, 0}, []time.Duration{0, 0, 2, 5}},
		{"received by a server", []grpcshaper.Option{costs, received}, nil, []time.Duration{0, 0, 0, 0}, []time.Duration{0, 0, 2, 5}},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, since func() time.Duration) {
				l := made.Shaper(t, "1/s depth 10")
				var onServer []grpc.ServerOption
				if test.server != nil {
					onServer = append(onServer, grpc.StreamInterceptor(grpcshaper.StreamServerInterceptor(l, test.server...)))
				}
				var onClient []grpc.DialOption
				if test.client != nil {
					onClient = append(onClient, grpc.WithStreamInterceptor(grpcshaper.StreamClientInterceptor(l, test.client...)))
				}
				r := connect(t, service{duplex: echo}, onServer, onClient)
				s, err := r.FullDuplexCall(t.Context())
				require.NoError(t, err)
				for i, size := range []int{2, 0, 3, 1} {
					require.NoError(t, s.Send(sized(size)))
					require.Equal(t, test.sent[i]*time.Second, since())
				}
				for _, took := range test.took {
					_, err := s.Recv()
					require.NoError(t, err)
					require.Equal(t, took*time.Second, since())
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
		l := made.Shaper(t, "1 per 5s depth 10 inflight 1")
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

// Even a handler that takes no notice of the error must not report success: its client
// would think that all messages have been seen.
func TestMessageThatIsRefusedEndsItsStream(t *testing.T) {
	for direction, option := range each() {
		t.Run(direction, func(t *testing.T) {
			bubble(t, func(t *testing.T, since func() time.Duration) {
				s := made.Shaper(t, "1 per 10s")
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

// As the comment of grpc.ClientStream says, an error of SendMsg or RecvMsg means that the
// stream is aborted: a caller who then forgets it must not leak it.
func TestMessageOfAClientThatIsRefusedAbortsTheStream(t *testing.T) {
	for direction, option := range each() {
		t.Run(direction, func(t *testing.T) {
			bubble(t, func(t *testing.T, since func() time.Duration) {
				l := made.Shaper(t, "1 per 10s")
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

func TestReceivedMessageIsInFlightUntilTheNextIsAskedFor(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		s := made.Shaper(t, "inf depth 10 inflight 1")
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

func TestReceivedMessageOfAClientIsInFlightUntilTheNextOrTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		l := made.Shaper(t, "inf depth 10 inflight 1")
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

func TestMessageWaitsNoLongerThanItsStreamLasts(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		s := made.Shaper(t, "1 per 10s depth 10")
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
				l := made.Shaper(t, "1 per 1min depth 10")
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

// A stream that waited for a seat while it held the only one would wait for ever.
func TestStreamThatAnswersWhatItReceivesNeedsOneSeat(t *testing.T) {
	both := []grpcshaper.Option{grpcshaper.WithEachReceived(), grpcshaper.WithEachSent()}
	bubble(t, func(t *testing.T, since func() time.Duration) {
		client, server := made.Shaper(t, "1/s depth 10 inflight 1"), made.Shaper(t, "inf depth 10 inflight 1")
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

// Streams end while their messages wait or have just left: by their servers, deadlines and
// callers at once. Each seat must be given back, or the line would stop some day.
func TestNoSeatIsLostWhenStreamsEndInSeveralWaysAtOnce(t *testing.T) {
	for name, opts := range map[string][]grpcshaper.Option{
		"opening":  nil,
		"messages": {grpcshaper.WithEachReceived(), grpcshaper.WithEachSent()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, server := made.Shaper(t, "inf depth 1000 inflight 6"), made.Shaper(t, "inf depth 1000 inflight 8")
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

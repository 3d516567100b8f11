package grpcshaper_test

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"example.com/leakybucket/grpcshaper"
	"example.com/leakybucket/shaper"
)

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

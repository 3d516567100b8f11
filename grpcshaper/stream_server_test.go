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
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"

	"example.com/leakybucket/grpcshaper"
)

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

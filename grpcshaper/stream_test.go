package grpcshaper_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"example.com/leakybucket/grpcshaper"
	"example.com/leakybucket/internal/made"
	"example.com/leakybucket/shaper"
)

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

package grpcshaper_test

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A service is a server's side of gRPC's own test service. A function that is nil answers
// at once.
type service struct {
	testgrpc.UnimplementedTestServiceServer
	unary  func(context.Context, *testgrpc.SimpleRequest) error
	duplex func(testgrpc.TestService_FullDuplexCallServer) error
}

func (s service) UnaryCall(ctx context.Context, request *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
	if s.unary == nil {
		return &testgrpc.SimpleResponse{}, nil
	}
	return &testgrpc.SimpleResponse{}, s.unary(ctx, request)
}

func (s service) FullDuplexCall(stream testgrpc.TestService_FullDuplexCallServer) error {
	if s.duplex == nil {
		return nil
	}
	return s.duplex(stream)
}

// StreamingInputCall answers when its client has sent everything.
func (s service) StreamingInputCall(stream testgrpc.TestService_StreamingInputCallServer) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return stream.SendAndClose(&testgrpc.StreamingInputCallResponse{})
		}
	}
}

// A rig is a server and a client that are connected through memory, so that calls take no
// time in a bubble.
type rig struct {
	testgrpc.TestServiceClient
	conn   *grpc.ClientConn
	server *grpc.Server
}

// onServer connects a client to a server with these options.
func onServer(t *testing.T, s service, opts ...grpc.ServerOption) rig {
	return connect(t, s, opts, nil)
}

// onClient connects a client with these options to a server.
func onClient(t *testing.T, s service, opts ...grpc.DialOption) rig { return connect(t, s, nil, opts) }

func connect(t *testing.T, s service, onServer []grpc.ServerOption, onClient []grpc.DialOption) rig {
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer(onServer...)
	testgrpc.RegisterTestServiceServer(server, s)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:memory", append(onClient,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
	)...)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = conn.Close() // A test may have closed it.
		server.Stop()
		require.NoError(t, <-done)
	})
	return rig{testgrpc.NewTestServiceClient(conn), conn, server}
}

// call makes one unary call.
func (r rig) call(ctx context.Context, opts ...grpc.CallOption) error {
	_, err := r.UnaryCall(ctx, &testgrpc.SimpleRequest{}, opts...)
	return err
}

// stream makes one call that is a stream: it sends the requests and receives one answer.
func (r rig) stream(ctx context.Context, requests ...*testgrpc.StreamingOutputCallRequest) (testgrpc.TestService_FullDuplexCallClient, error) {
	stream, err := r.FullDuplexCall(ctx)
	if err != nil {
		return nil, err
	}
	for _, request := range requests {
		if err := stream.Send(request); err != nil {
			return stream, err
		}
	}
	_, err = stream.Recv()
	return stream, err
}

// bubble runs a test in a bubble. since returns the time since its beginning.
func bubble(t *testing.T, test func(t *testing.T, since func() time.Duration)) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		test(t, func() time.Duration { return time.Since(start) })
	})
}

// of returns the context of a call of a tenant, who is named in the metadata.
func of(t *testing.T, tenant string) context.Context {
	return metadata.AppendToOutgoingContext(t.Context(), "tenant", tenant)
}

// requireCode asks for the code of a status.
func requireCode(t *testing.T, want codes.Code, err error) {
	t.Helper()
	require.Equal(t, want, status.Code(err), "%v", err)
}

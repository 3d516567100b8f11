package grpcshaper_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"example.com/leakybucket/grpcshaper"
	"example.com/leakybucket/internal/realtime"
)

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
							for stream.Send(sized(1)) == nil {
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

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
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/leakybucket/grpcshaper"
	"example.com/leakybucket/internal/made"
	"example.com/leakybucket/shaper"
)

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

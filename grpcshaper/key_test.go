package grpcshaper_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"example.com/leakybucket/grpcshaper"
	"example.com/leakybucket/internal/made"
	"example.com/leakybucket/shaper"
)

func from(addr net.Addr) context.Context {
	return peer.NewContext(context.Background(), &peer.Peer{Addr: addr})
}

func tcp(addr string) net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(addr)) }

func forwardedFor(ctx context.Context, values ...string) context.Context {
	return metadata.NewIncomingContext(ctx, metadata.MD{"x-forwarded-for": values})
}

func TestKeysOfPeersAreAddressesWithoutPorts(t *testing.T) {
	proxies := netip.MustParsePrefix("10.1.0.0/24")
	for _, test := range []struct {
		name string
		ctx  context.Context
		key  grpcshaper.KeyFunc
		want string
	}{
		{"IPv4", from(tcp("192.0.2.1:4711")), grpcshaper.ByPeer(), "192.0.2.1"},
		{"IPv4 in IPv6", from(tcp("[::ffff:192.0.2.1]:4711")), grpcshaper.ByPeer(), "192.0.2.1"},
		{"IPv6", from(tcp("[2001:db8::1:2:3]:4711")), grpcshaper.ByPeer(), "2001:db8::/64"},
		{"all of IPv6", from(tcp("[2001:db8::1]:4711")), grpcshaper.ByClientIP(shaper.ClientIP{IPv6Bits: 128}), "2001:db8::1"},
		{"Unix socket", from(&net.UnixAddr{Name: "/run/s.sock", Net: "unix"}), grpcshaper.ByPeer(), ""},
		{"no peer", context.Background(), grpcshaper.ByPeer(), ""},
		{"peer without address", from(nil), grpcshaper.ByPeer(), ""},
		{"forged", forwardedFor(from(tcp("192.0.2.1:1")), "198.51.100.7"), grpcshaper.ByPeer(proxies), "192.0.2.1"},
		{"through a proxy", forwardedFor(from(tcp("10.1.0.9:1")), "203.0.113.1", "198.51.100.7"), grpcshaper.ByPeer(proxies), "198.51.100.7"},
	} {
		got, err := test.key(test.ctx, "/shop.Orders/List")
		require.NoError(t, err, test.name)
		require.Equal(t, test.want, got, test.name)
	}
	_, err := grpcshaper.ByClientIP(shaper.ClientIP{IPv6Bits: 129})(from(tcp("192.0.2.1:1")), "")
	require.ErrorContains(t, err, "IPv6Bits is 129")
}

func TestKeysOfMetadataAreOneValueOrEmpty(t *testing.T) {
	incoming := func(pairs ...string) context.Context {
		return metadata.NewIncomingContext(context.Background(), metadata.Pairs(pairs...))
	}
	outgoing := func(pairs ...string) context.Context {
		return metadata.AppendToOutgoingContext(context.Background(), pairs...)
	}
	long := strings.Repeat("x", 1<<20)
	cut, _, _ := strings.Cut(shaper.Join(long), "/")
	for _, test := range []struct {
		name string
		ctx  context.Context
		key  grpcshaper.KeyFunc
		want string
	}{
		{"one", incoming("tenant", "acme"), grpcshaper.ByMetadata("tenant"), "acme"},
		{"any case", incoming("tenant", "acme"), grpcshaper.ByMetadata("Tenant"), "acme"},
		{"none", incoming(), grpcshaper.ByMetadata("tenant"), ""},
		{"no metadata", context.Background(), grpcshaper.ByMetadata("tenant"), ""},
		{"two", incoming("tenant", "acme", "tenant", "other"), grpcshaper.ByMetadata("tenant"), ""},
		{"long", incoming("tenant", long), grpcshaper.ByMetadata("tenant"), cut},
		{"called host", incoming("host", "acme"), grpcshaper.ByMetadata("host"), "acme"},
		{"authority", incoming(":authority", "acme.example"), grpcshaper.ByMetadata(":authority"), "acme.example"},
		{"outgoing", outgoing("tenant", "acme"), grpcshaper.ByOutgoingMetadata("tenant"), "acme"},
		{"not outgoing", incoming("tenant", "acme"), grpcshaper.ByOutgoingMetadata("tenant"), ""},
		{"not incoming", outgoing("tenant", "acme"), grpcshaper.ByMetadata("tenant"), ""},
	} {
		got, err := test.key(test.ctx, "/shop.Orders/List")
		require.NoError(t, err, test.name)
		require.Equal(t, test.want, got, test.name)
	}
	for _, name := range []string{"", "a b", "ü", "grpc-timeout", ":path", "a:b"} {
		_, err := grpcshaper.ByMetadata(name)(incoming(), "")
		require.ErrorContains(t, err, "ByMetadata: name is ")
		_, err = grpcshaper.ByOutgoingMetadata(name)(incoming(), "")
		require.ErrorContains(t, err, "ByOutgoingMetadata: name is ")
	}
}

func TestKeysAreJoinedSoThatNoClientCanPickARule(t *testing.T) {
	fixed := func(key string) grpcshaper.KeyFunc {
		return func(context.Context, string) (string, error) { return key, nil }
	}
	key := grpcshaper.By(grpcshaper.ByMethod(), fixed("x/y"), fixed(""))
	got, err := key(context.Background(), "/shop.Orders/List")
	require.NoError(t, err)
	require.Equal(t, "shop.Orders%2FList/x%2Fy/-", got)

	got, err = grpcshaper.ByMethod()(context.Background(), "/shop.Orders/List")
	require.NoError(t, err)
	require.Equal(t, "shop.Orders/List", got)

	wrong := errors.New("wrong")
	_, err = grpcshaper.By(fixed("a"), func(context.Context, string) (string, error) { return "", wrong })(context.Background(), "")
	require.ErrorIs(t, err, wrong)
	_, err = grpcshaper.By(fixed("a"), nil)(context.Background(), "")
	require.ErrorContains(t, err, "keys[1] is nil")
}

func TestEachKeyHasABucketOfItsOwn(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		tenants := made.Group[string](t, "1 per 10s")
		site := made.Shaper(t, "1 per 1s depth 10")
		byTenant := grpcshaper.PerKey(tenants, grpcshaper.ByMetadata("tenant"))
		for _, limiter := range []shaper.Limiter{byTenant, shaper.Chain(byTenant, site)} {
			r := onServer(t, service{}, grpc.UnaryInterceptor(grpcshaper.UnaryServerInterceptor(limiter)))
			require.NoError(t, r.call(of(t, "acme")))
			require.NoError(t, r.call(of(t, "other")))
			require.Equal(t, 10*time.Second, retryDelay(t, r.call(of(t, "acme"))).Round(5*time.Second))
			time.Sleep(time.Minute)
		}
		require.Equal(t, 2*time.Minute+time.Second, since(), "the second client of the Chain has waited for the site")
	})
}

// A PerKey in a Chain has only the context to tell the method by.
func TestMethodIsKnownWithinAChain(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		var methods []string
		noted := func(_ context.Context, method string) (string, error) {
			methods = append(methods, method)
			return method, nil
		}
		keyed := grpcshaper.PerKey(made.Group[string](t, "inf"), noted)
		r := connect(t, service{unary: func(ctx context.Context, _ *testgrpc.SimpleRequest) error {
			return keyed.WaitN(ctx, 1) // In a handler.
		}}, []grpc.ServerOption{grpc.UnaryInterceptor(grpcshaper.UnaryServerInterceptor(shaper.Chain(keyed)))},
			[]grpc.DialOption{grpc.WithUnaryInterceptor(grpcshaper.UnaryClientInterceptor(shaper.Chain(keyed)))})
		require.NoError(t, r.call(t.Context()))
		const method = "/grpc.testing.TestService/UnaryCall"
		require.Equal(t, []string{method, method, method}, methods)
		require.NoError(t, keyed.WaitN(t.Context(), 1))
		require.Equal(t, "", methods[3])
		require.NoError(t, keyed.WaitN(t.Context(), 0))
		require.ErrorIs(t, keyed.WaitN(t.Context(), -1), shaper.ErrNegativeCost)
		require.Len(t, methods, 4, "the key of a call that does not wait")
	})
}

func TestDryRunLetsCallsThroughWhoseKeyFails(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		noKey := func(context.Context, string) (string, error) { return "", errors.New("no key") }
		cost := 1
		r := onServer(t, service{}, grpc.UnaryInterceptor(grpcshaper.UnaryServerInterceptor(
			grpcshaper.PerKey(made.Group[string](t, "1 per 10s", shaper.WithDryRun()), noKey),
			grpcshaper.WithCost(func(context.Context, string, any) int { return cost }))))
		require.NoError(t, r.call(t.Context()))
		require.NoError(t, r.call(t.Context()))
		cost = -1
		requireCode(t, codes.Internal, r.call(t.Context()))
		require.Zero(t, since())
	})
}

func TestDryRunLeavesItsVerdictForAnInterceptorInFront(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		var verdict shaper.Verdict
		inFront := func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			ctx = shaper.ContextWithVerdict(ctx)
			answer, err := handler(ctx, request)
			verdict, _ = shaper.VerdictOf(ctx)
			return answer, err
		}
		r := onServer(t, service{}, grpc.ChainUnaryInterceptor(inFront,
			grpcshaper.UnaryServerInterceptor(made.Shaper(t, "1 per 10s depth 1", shaper.WithDryRun()))))
		require.NoError(t, r.call(t.Context()))
		require.NoError(t, r.call(t.Context()))
		require.Equal(t, shaper.Verdict{Wait: 10 * time.Second}, verdict)
		require.Zero(t, since())
	})
}

// A cap that is passed over is worse than none: the program believes that it has one.
func TestWaitNOfAPerKeyDoesNotPassOverTheCap(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		tenants, dry := made.Group[string](t, "inf inflight 1"), made.Group[string](t, "inf inflight 1", shaper.WithDryRun())
		ctx, want := t.Context(), tenants.WaitN(t.Context(), "a", 1)
		require.ErrorContains(t, want, "use Acquire")
		keyed := grpcshaper.PerKey(tenants, grpcshaper.ByMethod())
		for _, l := range []shaper.Limiter{keyed, shaper.Chain(keyed, made.Shaper(t, "inf"))} {
			require.Equal(t, want, l.WaitN(ctx, 1))
			require.NoError(t, l.WaitN(ctx, 0))
			require.Equal(t, shaper.ErrNegativeCost, l.WaitN(ctx, -1))
		}
		require.NoError(t, grpcshaper.PerKey(dry, grpcshaper.ByMethod()).WaitN(ctx, 1))
		release, err := shaper.Chain(keyed, made.Shaper(t, "inf")).Acquire(ctx, 1)
		require.NoError(t, err)
		for _, st := range tenants.All() {
			require.Equal(t, 1, st.InFlight)
		}
		release()
		for _, st := range tenants.All() {
			require.Zero(t, st.InFlight)
		}
		require.NoError(t, grpcshaper.PerKey(made.Group[string](t, "1/s"), grpcshaper.ByMethod()).WaitN(ctx, 1))

		// The failure of the limits function is still told from a refusal.
		secret := errors.New("secret")
		err = grpcshaper.PerKey(failingGroup(t, secret), grpcshaper.ByMethod()).WaitN(ctx, 1)
		require.ErrorIs(t, err, secret)
		require.ErrorContains(t, err, "grpcshaper: limits of a call: ")
	})
}

// A server limits the calls of each method, and the bytes of all.
func TestCallsAndBytesAreChargedTheirOwnCosts(t *testing.T) {
	bubble(t, func(t *testing.T, since func() time.Duration) {
		methods, bytes := made.Group[string](t, "1 per 1h burst 9"), made.Shaper(t, "1 per 1h burst 99")
		l := shaper.Chain(shaper.Priced(grpcshaper.PerKey(methods, grpcshaper.ByMethod()), func(int) int { return 1 }), bytes)
		r := onServer(t, service{}, grpc.UnaryInterceptor(grpcshaper.UnaryServerInterceptor(l,
			grpcshaper.WithCost(func(context.Context, string, any) int { return 20 }))))
		require.NoError(t, r.call(t.Context()))
		require.NoError(t, r.call(t.Context()))
		require.Zero(t, since())
		levels := 0.
		for _, st := range methods.All() {
			levels += st.Level
		}
		require.InDelta(t, 2, levels, 0)
		require.EqualValues(t, 40, bytes.Stats().Level)
	})
}

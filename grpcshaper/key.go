package grpcshaper

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"example.com/leakybucket/shaper"
)

// A KeyFunc returns the key of a call: calls with equal keys share one bucket. ctx is the
// context of the call, and fullMethod is like "/package.Service/Method". A call for which it
// returns an error is refused; [PerKey] says with which code.
//
// [ByPeer], [ByMetadata] and [ByMethod] are ready for use. [By] combines several, and
// [shaper.Join] makes the key in a function of your own. What is said of a [shaper.KeyFunc]
// holds here too: a call without the part has the empty key, which is a key like any other, and
// a key is worth what its source is worth.
type KeyFunc func(ctx context.Context, fullMethod string) (string, error)

// By returns a [KeyFunc] that joins the keys of several by [shaper.Join]. The first error is
// its error:
//
//	grpcshaper.By(grpcshaper.ByMethod(), grpcshaper.ByPeer()) // shop.Orders%2FList/192.0.2.1
//
// Put the part that picks the rule first, and the parts that the client can choose after it. If an argument is
// nil, every call is refused.
func By(keys ...KeyFunc) KeyFunc {
	keys = slices.Clone(keys)
	if i := slices.IndexFunc(keys, func(key KeyFunc) bool { return key == nil }); i >= 0 {
		return failing(fmt.Errorf("grpcshaper: By: keys[%d] is nil, must be a function", i))
	}
	return func(ctx context.Context, fullMethod string) (string, error) {
		parts := make([]string, len(keys))
		for i, key := range keys {
			part, err := key(ctx, fullMethod)
			if err != nil {
				return "", err
			}
			parts[i] = part
		}
		return shaper.Join(parts...), nil
	}
}

// ByMethod returns a [KeyFunc] whose key is the method without the first "/", as in
// "shop.Orders/List". Alone it suits a file of package config: the rule "shop.Orders" is
// then for all methods of that service.
//
// A server with an unknown service handler gets methods that its clients have made up.
// Check them first, or each new name gets a fresh bucket.
func ByMethod() KeyFunc {
	return func(_ context.Context, fullMethod string) (string, error) {
		return strings.TrimPrefix(fullMethod, "/"), nil
	}
}

// ByPeer returns a [KeyFunc] whose key is the address of the client, without the port: an
// IPv4 address, or the network of 64 bits that contains an IPv6 address. It is what
// [shaper.ByClientIP] is for HTTP. Behind proxies of your own that set x-forwarded-for, name
// their addresses; that field is believed of no other peer.
//
//	ByPeer()                                         // clients connect to this process
//	ByPeer(netip.MustParsePrefix("10.1.0.0/24"))     // through load balancers in 10.1.0.0/24
//
// A peer without such an address, as with a Unix socket, has the empty key. On a client the
// peer is the caller of this process, if the context has come from a call that it serves.
func ByPeer(trusted ...netip.Prefix) KeyFunc {
	return ByClientIP(shaper.ClientIP{Trusted: slices.Clone(trusted)})
}

// ByClientIP is [ByPeer] with all that a [shaper.ClientIP] can be told, such as another
// length of the networks of IPv6. If a field of c is out of range, every call is refused.
func ByClientIP(c shaper.ClientIP) KeyFunc {
	return func(ctx context.Context, _ string) (string, error) {
		r := &http.Request{Header: http.Header{}}
		if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
			r.RemoteAddr = p.Addr.String()
		}
		r.Header["X-Forwarded-For"] = metadata.ValueFromIncomingContext(ctx, "x-forwarded-for")
		return c.Key(r)
	}
}

// ByMetadata returns a [KeyFunc] for servers, whose key is the value that the client has sent
// as metadata of that name, such as an API key or the name of a tenant. If there is none, or
// more than one value, the key is empty. A value longer than 256 bytes is cut as by
// [shaper.Join].
//
// The client writes its metadata, so by itself this limits only honest clients. Use it
// behind an interceptor that has checked the value, and elsewhere beside a limit by
// [ByPeer]. Keys are shown in statistics: replace a secret value by the name of its owner
// first.
//
// If name is no name of metadata, every call is refused.
func ByMetadata(name string) KeyFunc {
	return byMetadata("ByMetadata", name, metadata.ValueFromIncomingContext)
}

// ByOutgoingMetadata is [ByMetadata] for clients: the key is the value that this process is
// about to send as metadata of that name.
func ByOutgoingMetadata(name string) KeyFunc {
	return byMetadata("ByOutgoingMetadata", name, func(ctx context.Context, name string) []string {
		sent, _ := metadata.FromOutgoingContext(ctx)
		return sent.Get(name)
	})
}

func byMetadata(function, name string, values func(ctx context.Context, name string) []string) KeyFunc {
	if !isMetadataName(name) {
		return failing(fmt.Errorf("grpcshaper: %s: name is %q, must be a name of metadata", function, name))
	}
	// It makes a key of one value or of several, and cuts it, in the way of HTTP. Metadata
	// may have names that mean something else there.
	const field = "Value"
	ofField := shaper.ByHeader(field)
	return func(ctx context.Context, _ string) (string, error) {
		return ofField(&http.Request{Header: http.Header{field: values(ctx, name)}})
	}
}

// isMetadataName reports whether a client can send metadata of that name. Names that begin
// with "grpc-" belong to gRPC. The one with a colon is the host that the client asks for.
func isMetadataName(name string) bool {
	name = strings.ToLower(name)
	if name == ":authority" {
		return true
	}
	for _, c := range []byte(name) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && !strings.ContainsRune("-_.", rune(c)) {
			return false
		}
	}
	return name != "" && !strings.HasPrefix(name, "grpc-")
}

// failing returns a [KeyFunc] that always returns err.
func failing(err error) KeyFunc {
	return func(context.Context, string) (string, error) { return "", err }
}

// PerKey returns a [shaper.Limiter] that lets each call wait for the bucket of its key. It
// is for the interceptors of this package:
//
//	clients, err := shaper.NewGroup(limitsOf)
//	…
//	grpcshaper.UnaryServerInterceptor(grpcshaper.PerKey(clients, grpcshaper.ByPeer()))
//
// In a [shaper.Chain] it works too, except for holds ([WithMaxHold]). On a server it may
// also be called by handlers, with the context of their call: by Acquire if the limits of a key
// have an InFlight, which WaitN refuses, as it does for a Shaper.
//
// If key returns an error, the call is refused: with that error, if it has a status, as from
// status.Error(codes.Unauthenticated, "no API key"), else with the code Internal. (If g is a
// dry run the call is let through.) A call of cost 0 passes untouched.
func PerKey(g *shaper.Group[string], key KeyFunc) shaper.Limiter {
	if g == nil {
		panic("grpcshaper: PerKey needs a Group")
	}
	if key == nil {
		panic("grpcshaper: PerKey needs a function that tells the key of a call")
	}
	g.Limiter("") // It panics if NewGroup has not made g. A panic in a call would end the server.
	return perKey{g, key}
}

// A perKey is what [PerKey] returns.
type perKey struct {
	group *shaper.Group[string]
	key   KeyFunc
}

func (k perKey) WaitN(ctx context.Context, n int) error {
	b, err := k.bucketFor(ctx, n)
	if err != nil {
		return err
	}
	return b.WaitN(ctx, n)
}

func (k perKey) Acquire(ctx context.Context, n int) (release func(), err error) {
	b, err := k.bucketFor(ctx, n)
	if err != nil {
		return nothing, err
	}
	return b.Acquire(ctx, n)
}

// bucketFor returns the bucket of a call of cost n. One of cost 0 has no key.
func (k perKey) bucketFor(ctx context.Context, n int) (bucket, error) {
	switch {
	case n < 0:
		return nil, shaper.ErrNegativeCost
	case n == 0:
		return open{}, nil
	}
	return k.bucketOf(ctx, methodOf(ctx))
}

// bucketOf returns the bucket of a call.
func (k perKey) bucketOf(ctx context.Context, method string) (bucket, error) {
	key, err := k.key(ctx, method)
	switch {
	case err == nil:
		return keyBucket{k.group.Limiter(key)}, nil
	case k.group.Stats().DryRun:
		return open{}, nil
	}
	if _, ok := status.FromError(err); ok {
		return nil, err
	}
	return nil, &ownFault{"key of a call", err}
}

// A keyBucket is the bucket of a key of a Group. It tells the failures of the function that
// returns the Limits of a key from refusals, whatever error the function wraps.
type keyBucket struct{ bucket }

func (b keyBucket) Acquire(ctx context.Context, n int) (release func(), err error) {
	release, err = b.bucket.Acquire(ctx, n)
	return release, b.outcome(ctx, err)
}

func (b keyBucket) WaitN(ctx context.Context, n int) error {
	return b.outcome(ctx, b.bucket.WaitN(ctx, n))
}

// outcome returns the error of a call. The failure of the function wraps the function's error. An
// error that wraps none says that the caller has to use Acquire.
func (b keyBucket) outcome(ctx context.Context, err error) error {
	if err == nil || err == ctx.Err() {
		return err
	}
	if _, refused := err.(*shaper.RejectError); refused || errors.Unwrap(err) == nil {
		return err
	}
	return &ownFault{"limits of a call", err}
}

// An open bucket lets every call through.
type open struct{}

func (open) Acquire(ctx context.Context, _ int) (release func(), err error) {
	return nothing, ctx.Err()
}

func (open) WaitN(ctx context.Context, _ int) error { return ctx.Err() }

func (open) Hold(time.Duration) {}

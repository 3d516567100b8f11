package redisbucket

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/redis/go-redis/v9"

	"example.com/leakybucket/shaper/shared"
)

// A Ring is a [shared.Bucket], a [shared.Seater] and a [shared.Keeper] on several servers that do not know of each other: each key
// has one of them. A server that is down fails its own keys, and no other takes them over,
// as two processes could then use two levels. [NewRing] makes one. A Ring is safe for
// concurrent use.
type Ring struct{ servers []ringServer } // ordered by name

type ringServer struct {
	name   string
	seed   uint64 // the hash of the name
	bucket *Bucket
}

var _ shared.Bucket = (*Ring)(nil)

// NewRing returns a [Bucket] on the servers of several clients, each as for [New].
//
// Which server a key has follows from the names of all servers, by rendezvous hashing, and
// not from their addresses. So all processes must use the same names. A server that is
// added takes over its part of the keys, and no key moves between the others. Until all
// processes have it, some use one level of a moved key, and some the other.
func NewRing(clients map[string]redis.UniversalClient, opts ...Option) *Ring {
	r := &Ring{}
	for _, name := range slices.Sorted(maps.Keys(clients)) {
		r.servers = append(r.servers, ringServer{name, hash(fnvOffset, name), New(clients[name], opts...)})
	}
	return r
}

// Take implements [shared.Bucket].
func (r *Ring) Take(ctx context.Context, t shared.Take) (shared.Taken, error) {
	s := r.server(t.Key)
	if s == nil {
		return shared.Taken{}, errNoServers
	}
	return s.bucket.Take(ctx, t)
}

// GiveBack implements [shared.Bucket].
func (r *Ring) GiveBack(ctx context.Context, t shared.Take, end shared.Instant) error {
	s := r.server(t.Key)
	if s == nil {
		return errNoServers
	}
	return s.bucket.GiveBack(ctx, t, end)
}

// Seats implements [shared.Seater].
func (r *Ring) Seats(ctx context.Context, q shared.Seating) (shared.Seated, error) {
	s := r.server(q.Key)
	if s == nil {
		return shared.Seated{}, errNoServers
	}
	return s.bucket.Seats(ctx, q)
}

// Keep implements [shared.Keeper].
func (r *Ring) Keep(ctx context.Context, k shared.Keeping) (shared.Kept, error) {
	s := r.server(k.Key)
	if s == nil {
		return shared.Kept{}, errNoServers
	}
	return s.bucket.Keep(ctx, k)
}

var errNoServers = errors.New("redisbucket: the Ring has no servers")

// Shard returns the name of the server of a key, and of its hash slot if the server is a
// cluster: keys with the same answer fail together.
func (r *Ring) Shard(key string) string {
	s := r.server(key)
	if s == nil {
		return ""
	}
	if slot := s.bucket.Shard(key); slot != "" {
		return s.name + " " + slot
	}
	return s.name
}

// server returns the server of a key: that for which the hash of both names is greatest.
func (r *Ring) server(key string) *ringServer {
	var best *ringServer
	var most uint64
	for i := range r.servers {
		s := &r.servers[i]
		if score := mix(hash(s.seed, key)); best == nil || score > most {
			best, most = s, score
		}
	}
	return best
}

// hash goes on with an FNV-1a hash.
func hash(h uint64, text string) uint64 {
	for _, c := range []byte(text) {
		h = (h ^ uint64(c)) * 1099511628211
	}
	// The end of a text counts, so that "a" + "bc" is not "ab" + "c".
	return (h ^ 0xff) * 1099511628211
}

const fnvOffset = 14695981039346656037

// mix makes each bit of the result depend on all of h's (the end of SplitMix64), because
// the hashes of texts which begin alike are close.
func mix(h uint64) uint64 {
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

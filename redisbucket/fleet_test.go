package redisbucket_test

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/made"
	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/redisbucket"
	"example.com/leakybucket/shaper/shared"
)

// steps returns how many steps a random script has.
func steps() int {
	if os.Getenv("SHAPER_LONG") == "" {
		return 8000
	}
	return 400_000
}

// A fleet is what a server has beside the levels of keys.
type fleet struct {
	*redisbucket.Bucket
	t      testing.TB
	client redis.UniversalClient
	run    string // of the server
}

func newFleet(t testing.TB, server *servers.Redis) fleet {
	client := connect(t, server.Addr)
	run := client.InfoMap(within(t), "server").Val()["Server"]["run_id"]
	require.NotEmpty(t, run)
	return fleet{redisbucket.New(client), t, client, run}
}

// write replaces a hash; without fields it is gone.
func (f fleet) write(name string, fields map[string]string) {
	f.t.Helper()
	require.NoError(f.t, f.client.Del(f.t.Context(), name).Err())
	if len(fields) > 0 {
		require.NoError(f.t, f.client.HSet(f.t.Context(), name, fields).Err())
	}
}

func (f fleet) setSeats(key string, s shared.SeatState) {
	f.t.Helper()
	fields := redisbucket.EncodeSeats(s, f.run)
	if s.Ready == 0 {
		fields = nil
	}
	f.write(redisbucket.SeatsName(f.Bucket, key), fields)
}

func (f fleet) seats(key string) (s shared.SeatState) {
	f.t.Helper()
	fields, err := f.client.HGetAll(f.t.Context(), redisbucket.SeatsName(f.Bucket, key)).Result()
	require.NoError(f.t, err)
	for name, text := range fields {
		if name == "" {
			_, err = fmt.Sscan(text, &s.Ready, new(string))
		} else {
			h := shared.SeatHolder{ID: name}
			_, err = fmt.Sscan(text, &h.Held, &h.Want, &h.Since, &h.Expires, &h.Number)
			s.Holders = append(s.Holders, h)
		}
		require.NoError(f.t, err, text)
	}
	slices.SortFunc(s.Holders, func(a, b shared.SeatHolder) int { return cmp.Compare(a.ID, b.ID) })
	return s
}

func (f fleet) setKeeper(key string, s shared.KeepState) {
	f.t.Helper()
	f.write(redisbucket.KeeperName(f.Bucket, key), redisbucket.EncodeKeeper(s))
}

func (f fleet) keeper(key string) (s shared.KeepState) {
	f.t.Helper()
	fields, err := f.client.HGetAll(f.t.Context(), redisbucket.KeeperName(f.Bucket, key)).Result()
	require.NoError(f.t, err)
	if keeper := fields["keeper"]; keeper != "" {
		s.ID = keeper
		for _, n := range []*int64{&s.Ends, (*int64)(&s.Lease)} {
			digits := 0
			for s.ID[digits] != ' ' {
				digits++
			}
			_, err := fmt.Sscan(s.ID[:digits], n)
			require.NoError(f.t, err)
			s.ID = s.ID[digits+1:]
		}
		s.Lease *= time.Microsecond
	}
	s.Value = []byte(fields["value"])
	return s
}

// The scripts take the steps of package shared, whatever happens, at a clock of the test's.
func TestTheScriptsTakeTheStepsOfSeatsAndKeepers(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, server *servers.Redis) {
		f := newFleet(t, server)
		made.Seats(t, steps(), made.Stepped[shared.Seating, shared.Seated, shared.SeatState]{
			Ask: func(q shared.Seating, now int64) (shared.Seated, error) {
				return redisbucket.SeatsAt(t.Context(), f.Bucket, q, now)
			},
			Get: f.seats, Set: f.setSeats,
		})
		made.Keeps(t, steps(), made.Stepped[shared.Keeping, shared.Kept, shared.KeepState]{
			Ask: func(k shared.Keeping, now int64) (shared.Kept, error) {
				return redisbucket.KeepAt(t.Context(), f.Bucket, k, now)
			},
			Get: f.keeper, Set: f.setKeeper,
		})
	})
}

package shaper_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/watch"
)

// Whoever can make up addresses, as any customer with an IPv6 prefix can, meets a
// table that is full. This file tests how that changes the waits of others, and how
// much it gains the attacker, to the nanosecond, and how much memory it takes.

// network64 is the i-th of 2³² networks of 64 bits, with the port of a client.
func network64(i int) string {
	address := [16]byte{0x20, 0x01, 0x0d, 0xb8}
	binary.BigEndian.PutUint32(address[4:], uint32(i))
	address[15] = 1
	return netip.AddrPortFrom(netip.AddrFrom16(address), 40000).String()
}

// from sends a request of a client at that address, and returns the status.
func from(h http.Handler, address string, header ...string) int {
	rec := httptest.NewRecorder()
	r := &http.Request{Method: "GET", URL: spoofedURL, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, Body: http.NoBody, RemoteAddr: address}
	for _, h := range header {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Add(name, value)
	}
	h.ServeHTTP(rec, r)
	return rec.Code
}

var spoofedURL = httptest.NewRequest("GET", "/", nil).URL

// limitsUnderAttack lets clients with an IPv4 address wait, whose buckets are busy,
// and gives all others next to nothing.
func limitsUnderAttack(key string) (shaper.Limits, error) {
	if strings.HasPrefix(key, "192.0.2.") {
		return shaper.Limits{Rate: 20, Depth: 9}, nil
	}
	return shaper.Limits{Rate: 1. / 3600}, nil
}

func TestSpoofedAddressesChangeNobodysWait(t *testing.T) {
	const maxKeys, attacker = 500, "[2001:db8:ffff:ffff::1]:1"
	clients := []string{"192.0.2.1:1", "192.0.2.2:1"}
	// waits returns when the requests of the honest left, and how many of the attacker's were
	// admitted.
	waits := func(attacked bool) (left []string, admitted int, st shaper.GroupStats) {
		playKeys(t, "inf", func(g *groupStage) {
			group, err := shaper.NewGroup(limitsUnderAttack, shaper.WithMaxKeys(maxKeys))
			require.NoError(t, err)
			defer group.Close()
			h := group.Middleware(shaper.ByClientIP())(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			require.Equal(t, 200, from(h, attacker))
			spoofed := 0
			for i := range 100 {
				g.at(time.Duration(i) * 45 * ms) // Faster than they leave.
				for _, client := range clients {
					go func() { g.note(fmt.Sprint(client, " ", i, " ", from(h, client))) }()
				}
				g.at(time.Since(g.start))
				if !attacked {
					continue
				}
				for range 50 {
					if from(h, network64(spoofed)) == 200 {
						admitted++
					}
					spoofed++
					require.Equal(t, 429, from(h, attacker), "he has had his own")
					require.Equal(t, 429, from(h, attacker, "X-Forwarded-For: "+network64(spoofed)))
				}
			}
			own, err := group.Limiter("2001:db8:ffff:ffff::/64").Forecast(1)
			require.Equal(t, fmt.Sprintf("full, retry %v", time.Hour-time.Since(g.start)), outcome(err))
			require.Zero(t, own)
			st = group.Stats()
			g.at(time.Minute)
			left = byInstant(g.log)
			g.log = nil
		})
		return left, admitted, st
	}
	alone, _, _ := waits(false)
	attacked, admitted, st := waits(true)
	require.Len(t, alone, 200)
	require.Equal(t, alone, attacked, "as if there was no attack")
	require.Equal(t, maxKeys, st.Keys)
	// Besides the buckets that were free, the attacker gets the shared ones, and each of those is
	// for all keys that a hash puts there.
	free := maxKeys - len(clients) - 1
	require.GreaterOrEqual(t, admitted, free)
	require.LessOrEqual(t, admitted, free+1024)
	require.EqualValues(t, 5000-free, st.Overflowed)
}

// A second flood, of other addresses, finds the shared buckets as the first left them.
func TestMoreSpoofedAddressesGainNothing(t *testing.T) {
	t.Parallel()
	playKeys(t, "1 per 1h", func(g *groupStage) {
		admitted := func(from, to int) (n int) {
			for i := from; i < to; i++ {
				if g.Allow(network64(i)) {
					n++
				}
			}
			return n
		}
		require.Equal(t, 10, admitted(0, 10), "each has a bucket")
		require.LessOrEqual(t, admitted(10, 20_000), 1024)
		require.Zero(t, admitted(20_000, 40_000))
		require.Zero(t, admitted(0, 40_000), "nor do the old ones begin anew")
		g.at(30 * time.Minute)
		require.Zero(t, admitted(0, 40_000))
		require.Equal(t, 10, g.Group.Stats().Keys)
		require.InEpsilon(t, 39_990, g.Group.Stats().RefusedKeys, 0.05)
	}, shaper.WithMaxKeys(10))
}

// A flood takes the memory of a full table, however many addresses it makes up.
func TestSpoofedAddressesTakeNoMoreMemory(t *testing.T) {
	if underRace {
		t.Skip("the race detector takes memory of its own")
	}
	const maxKeys = 10_000
	empty := heapInUse()
	group, err := shaper.NewGroup(limitsUnderAttack, shaper.WithMaxKeys(maxKeys))
	require.NoError(t, err)
	defer group.Close()
	h := group.Middleware(shaper.ByClientIP())(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	flood := func(begin, end int) (admitted int) {
		for i := begin; i < end; i++ {
			if from(h, network64(i)) == 200 {
				admitted++
			}
		}
		return admitted
	}
	require.Equal(t, maxKeys, flood(0, maxKeys))
	require.LessOrEqual(t, flood(maxKeys, 5*maxKeys), 1024, "all shared buckets are in use")
	full := heapInUse()
	more := rounds(30_000, 1_000_000, 1_000_000)
	require.LessOrEqual(t, flood(5*maxKeys, 5*maxKeys+more), 1024)
	require.Less(t, heapInUse()-full, int64(256<<10), "%d addresses more", more)
	require.Less(t, full-empty, int64(5<<20), "500 bytes for a key that has been refused")
	require.Equal(t, maxKeys, group.Stats().Keys)
	require.InEpsilon(t, 4*maxKeys+more, group.Stats().RefusedKeys, 0.05)
}

// It is known who it was.
func TestTopOfAGroup(t *testing.T) {
	for name, opts := range map[string][]shaper.GroupOption{"real": nil, "dry run": {shaper.WithDryRun()}} {
		t.Run(name, func(t *testing.T) {
			playKeys(t, "1/s burst 2 depth 1", func(g *groupStage) {
				for range 5 { // Two leave, one waits, two are refused.
					go func() { _ = g.Wait(context.Background(), "often") }()
				}
				g.at(0)
				go func() { _ = g.WaitN(context.Background(), "waits", 2) }()
				g.at(0)
				go func() { _ = g.WaitN(context.Background(), "waits", 1) }()
				g.at(0)
				require.True(t, g.AllowN("never", 2))
				require.True(t, g.AllowN("allow", 2))
				require.Equal(t, opts != nil, g.AllowN("allow", 2))
				require.NoError(t, ignore(g.Limiter("never").Forecast(1)))
				want := []watch.KeyCount[string]{{Key: "often", Count: 3}, {Key: "waits", Count: 1}, {Key: "allow", Count: 1}}
				require.Equal(t, want, g.Top(9))
				require.Equal(t, want[:1], g.Top(1))
				require.Empty(t, g.Top(0))
				refused := g.Group.Stats().RefusedKeys // Two, but once in thousands their hashes meet.
				require.NotZero(t, refused)
				require.LessOrEqual(t, refused, uint64(2), "who waited was not refused")
				g.at(time.Minute)
				g.gone()
				require.Equal(t, want, g.Top(9), "their buckets are gone")
				require.Equal(t, refused, g.Group.Stats().RefusedKeys)
				go func() { _ = g.WaitN(context.Background(), "often", 3) }()
				g.at(time.Minute + 2*time.Second)
				require.Equal(t, want, g.Top(9), "it left at once, from an empty bucket")
			}, opts...)
		})
	}
}

func ignore(_ time.Duration, err error) error { return err }

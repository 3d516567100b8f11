package shaper_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/watch"
)

// proxies are the addresses of proxies that these tests trust.
var proxies = prefixes("10.0.0.0/8", "fd00::/8", "fe80::/10")

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// fromPeer returns a request of a peer, with lines of X-Forwarded-For.
func fromPeer(peer string, lines ...string) *http.Request {
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = peer
	r.Header["X-Forwarded-For"] = lines
	return r
}

const (
	ourProxy = "10.0.0.1:1234"    // a proxy
	somebody = "203.0.113.9:1234" // somebody
)

var clientAddresses = []struct {
	peer  string
	lines []string
	want  string
}{
	// The key is the address of the peer.
	{somebody, nil, "203.0.113.9"},
	{"203.0.113.9", nil, "203.0.113.9"},
	{"[2001:db8:1:2:3:4:5:6]:1234", nil, "2001:db8:1:2::/64"},
	{"[2001:db8:1:2:ffff::]:1234", nil, "2001:db8:1:2::/64"},
	{"2001:db8:1:2:3:4:5:6", nil, "2001:db8:1:2::/64"},
	{"[2001:db8:1:3::]:1234", nil, "2001:db8:1:3::/64"},
	{"[::ffff:203.0.113.9]:1234", nil, "203.0.113.9"},
	{"[fe80::1%eth0]:1234", nil, "fe80::/64"},
	{"[fe80::2%eth1]:1234", nil, "fe80::/64"},

	// If the peer has no address, all requests have one key, whatever their fields say.
	{"", nil, ""},
	{"@", []string{"192.0.2.1"}, ""},
	{"/run/site.sock", []string{"192.0.2.1"}, ""},
	{"203.0.113.9:http", nil, ""},
	{"example.com:80", nil, ""},

	// The peer is not a trusted proxy, so its field is not read.
	{somebody, []string{"192.0.2.1"}, "203.0.113.9"},
	{somebody, []string{"10.0.0.2"}, "203.0.113.9"},
	{"[2001:db8::1]:1234", []string{"192.0.2.1"}, "2001:db8::/64"},

	// The elements are read from right to left, over all lines.
	{ourProxy, nil, "10.0.0.1"},
	{ourProxy, []string{"192.0.2.1"}, "192.0.2.1"},
	{ourProxy, []string{"198.51.100.7, 192.0.2.1"}, "192.0.2.1"},
	{ourProxy, []string{"198.51.100.7,192.0.2.1,10.0.0.2,10.0.0.3"}, "192.0.2.1"},
	{ourProxy, []string{"198.51.100.7", "192.0.2.1"}, "192.0.2.1"},
	{ourProxy, []string{"198.51.100.7, 192.0.2.1", "10.0.0.2", " 10.0.0.3\t,\t10.0.0.4 "}, "192.0.2.1"},
	{ourProxy, []string{"192.0.2.1, fd00::1"}, "192.0.2.1"},
	{"[fd00::1]:1234", []string{"192.0.2.1, 10.0.0.1"}, "192.0.2.1"},
	{"[fe80::1%eth0]:1234", []string{"192.0.2.1"}, "192.0.2.1"},
	{"[::ffff:10.0.0.1]:1234", []string{"192.0.2.1, ::ffff:10.0.0.2"}, "192.0.2.1"},
	{ourProxy, []string{"192.0.2.1, fe80::1%eth0"}, "192.0.2.1"},

	// An address may be written in several forms.
	{ourProxy, []string{"2001:db8:1:2:3:4:5:6"}, "2001:db8:1:2::/64"},
	{ourProxy, []string{"[2001:db8:1:2:3:4:5:6]"}, "2001:db8:1:2::/64"},
	{ourProxy, []string{"[2001:db8:1:2:3:4:5:6]:1234"}, "2001:db8:1:2::/64"},
	{ourProxy, []string{"2001:DB8:1:2:3:4:5:6%25eth0"}, "2001:db8:1:2::/64"},
	{ourProxy, []string{"192.0.2.1:1234"}, "192.0.2.1"},
	{ourProxy, []string{"::ffff:192.0.2.1"}, "192.0.2.1"},
	{ourProxy, []string{"[::ffff:c000:201]:1234"}, "192.0.2.1"},
	{ourProxy, []string{"198.51.100.7, 192.0.2.1:1234, 10.0.0.2:80"}, "192.0.2.1"},

	// If all addresses are trusted, the one furthest away counts.
	{ourProxy, []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
	{ourProxy, []string{"10.0.0.4", "10.0.0.3, 10.0.0.2"}, "10.0.0.4"},
	{ourProxy, []string{"fd00:1::1, 10.0.0.2"}, "fd00:1::/64"},

	// If an element is malformed, the peer counts, not the last good element. More are in malformedElements.
	{"[fd00:1::1]:1234", []string{"unknown"}, "fd00:1::/64"},
	{ourProxy, []string{"unknown, 192.0.2.1"}, "192.0.2.1"}, // the malformed element is the client's, to the left of a good one

	// The 32nd element is read, and the 33rd is not.
	{ourProxy, []string{"192.0.2.1" + strings.Repeat(",10.0.0.2", 31)}, "192.0.2.1"},
	{ourProxy, []string{"192.0.2.1" + strings.Repeat(",10.0.0.2", 32)}, "10.0.0.1"},
	{ourProxy, append([]string{"192.0.2.1"}, slices.Repeat([]string{"10.0.0.2"}, 32)...), "10.0.0.1"},
	{ourProxy, []string{strings.Repeat("10.0.0.2,", 31) + "10.0.0.3"}, "10.0.0.2"},
}

// malformedElements are lines of our proxy in which the first element that counts is malformed.
var malformedElements = [][]string{
	{""}, {" "}, {"unknown"}, {"192.0.2.1, unknown, 10.0.0.2"}, {"192.0.2.1, , 10.0.0.2"}, {"192.0.2.1,"},
	{",10.0.0.2"}, {"192.0.2.1", "", "10.0.0.2"}, {"192.0.2.01"}, {"192.0.2.1:70000"}, {"192.0.2.1:"},
	{"192.0.2.1:80:80"}, {"[192.0.2.1]:80"}, {"[192.0.2.1]"}, {"[2001:db8::1"}, {"2001:db8::1]"}, {"[]"},
	{`"192.0.2.1"`}, {"192.0.2.1 192.0.2.2"}, {"192.0.2.1\u00a0"}, {"192.0.2.1/32"},
}

func TestByClientIP(t *testing.T) {
	for _, lines := range malformedElements {
		require.Equal(t, "10.0.0.1", keyOf(t, shaper.ByClientIP(proxies...), fromPeer(ourProxy, lines...)), "%q", lines)
	}
	for _, test := range clientAddresses {
		require.Equal(t, test.want, keyOf(t, shaper.ByClientIP(proxies...), fromPeer(test.peer, test.lines...)), "%q for %q", test.peer, test.lines)
	}
}

func TestWithoutTrustedProxiesTheFieldIsNotRead(t *testing.T) {
	require.Equal(t, "10.0.0.1", keyOf(t, shaper.ByClientIP(), fromPeer(ourProxy, "192.0.2.1")))
	require.Equal(t, "::/64", keyOf(t, shaper.ByClientIP(), fromPeer("[::1]:1234", "192.0.2.1")))
}

// Other libraries have taken a client's address from these fields, which any client can set.
func TestNoOtherFieldIsRead(t *testing.T) {
	r := fromPeer(ourProxy)
	for _, name := range []string{"X-Real-Ip", "True-Client-Ip", "Forwarded", "X-Forwarded", "Cf-Connecting-Ip", "Client-Ip", "X-Forwarded_for"} {
		r.Header[name] = []string{"192.0.2.1"}
	}
	require.Equal(t, "10.0.0.1", keyOf(t, shaper.ByClientIP(proxies...), r))
}

func TestByClientIPKeepsItsOwnPrefixes(t *testing.T) {
	trusted := slices.Clone(proxies)
	key := shaper.ByClientIP(trusted...)
	trusted[0] = netip.Prefix{}
	require.Equal(t, "192.0.2.1", keyOf(t, key, fromPeer(ourProxy, "192.0.2.1")))
}

func TestTrustedPrefixesMayBeMappedOrNotMasked(t *testing.T) {
	for _, test := range []struct{ prefix, peer, want string }{
		{"::ffff:10.0.0.0/104", ourProxy, "192.0.2.1"},
		{"::ffff:10.0.0.0/104", "[::ffff:10.0.0.1]:1234", "192.0.2.1"},
		{"::ffff:10.0.0.1/128", ourProxy, "192.0.2.1"},
		{"::ffff:10.0.0.2/128", ourProxy, "10.0.0.1"},
		{"::ffff:0.0.0.0/96", somebody, "192.0.2.1"},
		{"10.9.9.9/8", ourProxy, "192.0.2.1"},
		{"10.0.0.1/32", "[::ffff:10.0.0.1]:1234", "192.0.2.1"},
		{"0.0.0.0/0", "[2001:db8::1]:1234", "2001:db8::/64"},
		{"::/0", somebody, "203.0.113.9"}, // does not contain IPv4 addresses
		{"::/0", "[::ffff:203.0.113.9]:1234", "203.0.113.9"},
		{"::/0", "[2001:db8::1%eth0]:1234", "192.0.2.1"},
	} {
		require.Equal(t, test.want, keyOf(t, shaper.ByClientIP(netip.MustParsePrefix(test.prefix)), fromPeer(test.peer, "192.0.2.1")), "%+v", test)
	}
}

func TestIPv6Bits(t *testing.T) {
	const client = "[2001:db8:1234:5678:9abc:def0:1234:5678%eth0]:1234"
	for _, test := range []struct {
		bits int
		want string
	}{
		{0, "2001:db8:1234:5678::/64"},
		{1, "::/1"},
		{48, "2001:db8:1234::/48"},
		{56, "2001:db8:1234:5600::/56"},
		{64, "2001:db8:1234:5678::/64"},
		{127, "2001:db8:1234:5678:9abc:def0:1234:5678/127"},
		{128, "2001:db8:1234:5678:9abc:def0:1234:5678"},
	} {
		ip := shaper.ClientIP{Trusted: proxies, IPv6Bits: test.bits}
		require.Equal(t, test.want, keyOf(t, ip.Key, fromPeer(client)), "%d bits", test.bits)
		require.Equal(t, test.want, keyOf(t, ip.Key, fromPeer(ourProxy, client)), "%d bits", test.bits)
		require.Equal(t, "203.0.113.9", keyOf(t, ip.Key, fromPeer(somebody)), "%d bits", test.bits)
		require.Equal(t, "203.0.113.9", keyOf(t, ip.Key, fromPeer("[::ffff:203.0.113.9]:1234")), "%d bits", test.bits)
	}
}

func TestClientIPOutOfRangeIsAnErrorForEverybody(t *testing.T) {
	for _, test := range []struct {
		ip   shaper.ClientIP
		want string
	}{
		{shaper.ClientIP{IPv6Bits: -1}, "shaper: ClientIP.IPv6Bits is -1, must be from 1 to 128, or 0 for 64"},
		{shaper.ClientIP{IPv6Bits: 129}, "shaper: ClientIP.IPv6Bits is 129, must be from 1 to 128, or 0 for 64"},
		{shaper.ClientIP{Trusted: []netip.Prefix{proxies[0], {}}}, `shaper: ClientIP.Trusted[1] is "invalid Prefix", must be a prefix`},
		{shaper.ClientIP{Trusted: prefixes("::ffff:10.0.0.0/95")}, `shaper: ClientIP.Trusted[0] is "::ffff:10.0.0.0/95", must have at least 96 bits, as an IPv4-mapped prefix`},
	} {
		for _, peer := range []string{somebody, ourProxy, "@", "[2001:db8::1]:1234"} {
			key, err := test.ip.Key(fromPeer(peer, "192.0.2.1"))
			require.EqualError(t, err, test.want)
			require.Empty(t, key)
		}
	}
	_, err := shaper.ByClientIP(netip.Prefix{})(fromPeer(somebody))
	require.ErrorContains(t, err, "Trusted[0]")
}

// written matches the forms in which an address may be written: [IPv6] with a port or
// without, IPv4 with a port, and any address without brackets and port.
var written = regexp.MustCompile(`(?s)^[ \t]*(?:\[(.*)\](?::(\d+))?|([\d.]+):(\d+)|(.*?))[ \t]*$`)

// slowAddress parses an element by the expression above.
func slowAddress(element string) (a netip.Addr, ok bool) {
	m := written.FindStringSubmatch(element)
	a, err := netip.ParseAddr(m[1] + m[3] + m[5])
	if port := m[2] + m[4]; port != "" {
		_, portErr := strconv.ParseUint(port, 10, 16)
		err = errors.Join(err, portErr)
	}
	ok = err == nil && (m[1] == "" || a.Is6())
	return a.WithZone("").Unmap(), ok
}

// slowClient reverses the whole list and searches it for the client. It also reports
// whether the search ended within the list, so that no earlier element matters.
func slowClient(peer netip.Addr, lines []string) (client netip.Addr, found bool) {
	list := strings.Split(strings.Join(lines, ","), ",")
	slices.Reverse(list)
	for i, element := range list {
		a, ok := slowAddress(element)
		switch {
		case !ok || i == 32:
			return peer, true
		case !slices.ContainsFunc(proxies, func(p netip.Prefix) bool { return p.Contains(a) }):
			return a, true
		}
		client = a
	}
	return client, false
}

// The client's own elements stand to the left of the first proxy's, in the same line or in earlier
// ones.
func FuzzPrependingToXForwardedForChangesNothing(f *testing.F) {
	for _, test := range clientAddresses {
		f.Add("1.2.3.4", strings.Join(test.lines, "\n"))
		f.Add(strings.Join(test.lines, ","), "192.0.2.1,10.0.0.2")
	}
	for _, lines := range malformedElements {
		f.Add("1.2.3.4", strings.Join(lines, "\n"))
		f.Add(strings.Join(lines, ","), "192.0.2.1,10.0.0.2")
	}
	f.Add("", "10.0.0.2")
	f.Add("1.2.3.4, [::1]:80\n, unknown", "fe80::1%eth0\n[fd00::1]:80")
	key := shaper.ClientIP{Trusted: proxies, IPv6Bits: 128}.Key
	peer := netip.MustParseAddrPort(ourProxy)
	f.Fuzz(func(t *testing.T, prepended, forwarded string) {
		lines := strings.Split(forwarded, "\n")
		client, found := slowClient(peer.Addr(), lines)
		require.Equal(t, client.String(), keyOf(t, key, fromPeer(ourProxy, lines...)), "%q", lines)
		if !found {
			// All addresses are trusted, so put one in front that is not.
			client = netip.MustParseAddr("2001:db8::1")
			lines[0] = "2001:db8::1," + lines[0]
			if strings.Count(strings.Join(lines, ","), ",") >= 32 {
				return
			}
		}
		before := strings.Split(prepended, "\n")
		apart := slices.Concat(before, lines)
		require.Equal(t, client.String(), keyOf(t, key, fromPeer(ourProxy, apart...)), "%q before %q", before, lines)
		last := len(before) - 1
		before[last] += "," + lines[0]
		joined := slices.Concat(before, lines[1:])
		require.Equal(t, client.String(), keyOf(t, key, fromPeer(ourProxy, joined...)), "%q", joined)
	})
}

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
			group := must(shaper.NewGroup(limitsUnderAttack, shaper.WithMaxKeys(maxKeys)))
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
	group := must(shaper.NewGroup(limitsUnderAttack, shaper.WithMaxKeys(maxKeys)))
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

var routes = []string{
	"POST /login",
	"GET /orders/{id}",
	"/orders/{id}/{$}",
	"/static/",
	"/old/{$}",
	"/any/{name}/",
	"admin.example.com/",
	"admin.example.com/static/",
	"CONNECT /tunnel/{to}",
	"/tunnel/{to}/",
	"/a%2Fb/",
}

// A routed is a mux that notes which route's handler has run; "" if none has.
type routed struct {
	*http.ServeMux
	ran string
}

func newRouted() *routed {
	s := &routed{ServeMux: http.NewServeMux()}
	for _, route := range routes {
		s.HandleFunc(route, func(http.ResponseWriter, *http.Request) { s.ran = route })
	}
	return s
}

// run serves r and returns the route whose handler has run.
func (s *routed) run(r *http.Request) string {
	s.ran = ""
	s.ServeHTTP(httptest.NewRecorder(), r)
	return s.ran
}

// readRequest parses the text of a request, as a server does.
func readRequest(text string) (*http.Request, error) {
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(strings.ReplaceAll(text, "\n", "\r\n") + "\r\n\r\n")))
	if err == nil {
		r.RemoteAddr = somebody
	}
	return r, err
}

func TestByRoute(t *testing.T) {
	s := newRouted()
	for _, test := range []struct {
		line, host string
		want       string // the key
		runs       bool   // the handler of that route
	}{
		{"POST /login", "", "POST /login", true},
		{"POST /login?next=/orders/1", "", "POST /login", true},
		{"GET /orders/1", "", "GET /orders/{id}", true},
		{"GET /orders/POST%20%2Flogin", "", "GET /orders/{id}", true},
		{"HEAD /orders/2", "", "GET /orders/{id}", true},
		{"GET http://elsewhere.example/orders/3", "", "GET /orders/{id}", true},
		{"GET /static/a/b/c", "", "/static/", true},
		{"DELETE /static/", "", "/static/", true},
		{"GET /static/a", "admin.example.com", "admin.example.com/static/", true},
		{"GET /static/a", "admin.example.com:8080", "admin.example.com/static/", true},
		{"GET /nothing", "admin.example.com", "admin.example.com/", true},
		{"GET /a%2Fb/c", "", "/a%2Fb/", true},

		// The mux itself answers.
		{"GET /nothing", "", "", false},
		{"GET /login", "", "", false},
		{"GET /POST%20/login", "", "", false},
		{"GET /-", "", "", false},

		// The mux redirects to a route.
		{"GET /static", "", "/static/", false},
		{"GET /old", "", "/old/{$}", false},
		{"GET /any/login", "", "/any/{name}/", false},
		{"POST //login", "", "POST /login", false},
		{"POST /static/../login", "", "POST /login", false},
		{"POST /x/../login?a=b", "", "POST /login", false},

		// The mux redirects CONNECT neither to a clean path nor to another host, but
		// does redirect it to a path with a slash, which it then returns in place of a
		// pattern.
		{"CONNECT /tunnel/x", "", "CONNECT /tunnel/{to}", true},
		{"CONNECT /tunnel/x/", "", "/tunnel/{to}/", true},
		{"CONNECT /static/../login", "", "/static/", true},
		{"CONNECT /any/login", "", "", false},
		{"CONNECT /static", "", "", false},
		{"CONNECT /login", "", "", false},
		{"CONNECT example.com:443", "example.com:443", "", false},
		{"CONNECT other.example:443/static/x", "other.example", "/static/", true},
		{"CONNECT other.example:443/any/login", "other.example", "", false},
	} {
		r, err := readRequest(test.line + " HTTP/1.1\nHost: " + test.host)
		require.NoError(t, err)
		require.Equal(t, test.want, keyOf(t, shaper.ByRoute(s.ServeMux), r), "%q", test.line)
		ran := ""
		if test.runs {
			ran = test.want
		}
		require.Equal(t, ran, s.run(r), "%q", test.line)
	}
}

// A route whose own handler redirects is a route like any other.
func TestByRouteKnowsItsOwnRedirects(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("/moved", http.RedirectHandler("/here", http.StatusMovedPermanently))
	require.Equal(t, "/moved", keyOf(t, shaper.ByRoute(mux), httptest.NewRequest("GET", "/moved", nil)))
}

func TestByRouteSeesRoutesThatComeLater(t *testing.T) {
	mux := http.NewServeMux()
	key := shaper.ByRoute(mux)
	require.Equal(t, "", keyOf(t, key, httptest.NewRequest("GET", "/", nil)))
	mux.Handle("/", http.NotFoundHandler())
	require.Equal(t, "/", keyOf(t, key, httptest.NewRequest("GET", "/", nil)))
}

func TestByRouteNeedsAMux(t *testing.T) {
	key, err := shaper.ByRoute(nil)(httptest.NewRequest("GET", "/", nil))
	require.EqualError(t, err, "shaper: ByRoute: mux is nil, must be the ServeMux whose routes are meant")
	require.Empty(t, key)
}

// A program looks up a rule under the first part of the key. Whatever a client sends,
// this must be the rule of the route whose handler runs. If no handler runs, it may be
// the rule of any route or of none.
func FuzzNothingThatAClientSendsPicksAnotherRule(f *testing.F) {
	for _, line := range []string{
		"POST /login", "GET /orders/POST%20%2Flogin", "GET /static/../login", "GET /any/login",
		"CONNECT /any/login", "CONNECT /-", "CONNECT /any/x/../y", "CONNECT a/any/login", "GET *", "OPTIONS *",
		"CONNECT /orders/%7Bid%7D", "CONNECT /any/{name}", "CONNECT /a%2Fb", "CONNECT //any//x",
	} {
		f.Add(line, "example.com", "eve", "192.0.2.1")
		f.Add(line, "admin.example.com", "../POST %2Flogin/", "login/, 10.0.0.1")
	}
	f.Add("GET /", "", "", "")
	f.Add("POST /login", "-", "-\nX-User: -", "-")
	s := newRouted()
	key := shaper.By(shaper.ByRoute(s.ServeMux), shaper.ByHeader("X-User"), shaper.ByHeader("Host"), shaper.ByClientIP(prefixes("203.0.113.0/24")...))
	rules := map[string]string{"-": ""} // routes, by the names of their rules
	for _, route := range routes {
		rules[shaper.Join(route)] = route
	}
	require.Len(f, rules, len(routes)+1, "each route has a rule of its own")
	require.NotContains(f, slices.Collect(maps.Keys(rules)), "")
	f.Fuzz(func(t *testing.T, line, host, user, forwarded string) {
		r, err := readRequest(line + " HTTP/1.1\nHost: " + host + "\nX-User: " + user + "\nX-Forwarded-For: " + forwarded)
		if err != nil {
			return // A server would not accept this request.
		}
		k := keyOf(t, key, r)
		require.Equal(t, 3, strings.Count(k, "/"), "%q", k)
		name, _, _ := strings.Cut(k, "/")
		require.Contains(t, rules, name)
		if ran := s.run(r); ran != "" {
			require.Equal(t, ran, rules[name])
		}
	})
}

package shaper_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
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

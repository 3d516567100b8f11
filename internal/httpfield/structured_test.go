package httpfield_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/httpfield"
)

// The cases of this file are the working group's public test vectors for structured fields
// (httpwg/structured-field-tests on GitHub), as far as a RateLimit field can show them: in
// the values and names of its parameters, in the names of its items, and in its list. A
// malformed field must be ignored.

// readsAs asserts that Exhausted reads lines as a field that says that nothing remains for
// that many seconds; 0 means a field that is ignored.
func readsAs(t *testing.T, seconds int, lines ...string) {
	t.Helper()
	got := httpfield.Exhausted(http.Header{"Ratelimit": lines}, longest)
	require.Equalf(t, time.Duration(seconds)*time.Second, got, "%q", lines)
}

// isValue asserts whether text is accepted as a bare item, at the end of a field and within
// it.
func isValue(t *testing.T, valid bool, text string) {
	t.Helper()
	want := 0
	if valid {
		want = 5
	}
	readsAs(t, want, `"a";r=0;t=5;x=`+text)
	readsAs(t, want, `"a";r=0;t=5;x=`+text+`;y`)
	readsAs(t, want, `"a";x=`+text+`;r=0;t=5`)
	readsAs(t, want, `"b";x=`+text+`, "a";r=0;t=5`)
}

func TestBareItemsAreReadAsTheWorkingGroupHasThem(t *testing.T) {
	for _, kind := range []struct {
		name           string
		valid, invalid []string
	}{
		{"integers",
			[]string{"42", "0", "-0", "00", "-42", "042", "-042", "1", "9", "999999999999999", "-999999999999999"},
			[]string{"", "-", "--0", "--1", "-a23", "4-2", "- 42", "1234567890123456", "-1234567890123456",
				"9999999999999999", "9223372036854775808", "1_000", "0x1", "1e3", "+1", "٥"}},
		{"decimals",
			[]string{"1.23", "-1.23", "1.0", "0.1", "00.5", "-0.0", "1.123", "123456789012.1", "123456789012.123",
				"-123456789012.123"},
			[]string{"1.", "-1.", ".1", "-.1", ".", "1.1234", "1. 23", "1 .23", "- 1.23", "1.5.4", "1..4", "1.-5",
				"1234567890123.0", "1234567890123.", "123456789012345.6", "1.2e3"}},
		{"strings",
			[]string{`"foo"`, `""`, `" "`, `"foo \"bar\""`, `"\\"`, `"b\\"`, `";,=?:@%("`},
			[]string{`'foo'`, `"foo`, `"`, `"foo \,"`, `"foo \`, `"\"`, `"\x"`, "\"\t\"", "\"\x00\"", "\"\x1f\"", "\"\x7f\"",
				"\"\n\"", "\"\t", `"füü"`, `"foo"bar`, `"foo""bar"`}},
		{"tokens",
			[]string{"a_b-c.d3:f%00/*", "fooBar", "FooBar", "*", "*a", "a", "Z", "foo:bar/baz"},
			[]string{"b{c", "a(b", `a"b`, "a@b", "a?b", "a[b", "a<b", `a\b`, "3a", "_a", "-a", ".a", "/a", "!a", "ä", "aä"}},
		{"byte sequences",
			[]string{":aGVsbG8=:", "::", ":aGVsbG8:", ":QQ==:", ":QQ:", ":iZ==:", ":+/+/:", ":0000:", ":5555:", ":cHsdsRa894==:"},
			[]string{":aGVsbG8=", "aGVsbG8=:", ":", ":aGVsb G8=:", ":    :", ":aGVsbG!8=:", ":aGVsbG8=!:", ":iZ\u00e4=:",
				":_-Ah:", ":=:", ":A:", ":QQ=:", ":QQ===:", ":QUJD=:", ":aGVs\nbG8=:", ":aGVs\rbG8=:", ":=aGVsbG8:"}},
		{"booleans",
			[]string{"?1", "?0"},
			[]string{"?", "?2", "?Q", "? 1", "?-0", "?T", "?F", "?t", "?f", "?True", "?False", "?01", "?1.0", "1?"}},
		{"dates",
			[]string{"@0", "@-0", "@1", "@1659578233", "@-1659578233", "@-62135596800", "@253402214400"},
			[]string{"@", "@1659578233.12", "@1.", "@ 1", "@-", "@a", "@@1", "@1234567890123456", "Tue, 02 Oct 2018 10:22:00 GMT"}},
		{"display strings",
			[]string{`%"foo bar"`, `%""`, `%"f%c3%bc%c3%bc"`, `%"foo %22bar%22 \ baz"`, `%"%00"`, `%"%25"`, `%"BOM: %ef%bb%bf"`,
				`%"%f0%9f%98%80"`, `%" !%22#$%25&'()*+,-./09:;<=>?@AZ[\]^_` + "`" + `az{|}~"`},
			[]string{`%"f%C3%BC"`, "%\"\t\"", "%\"\n\"", "%\"\x1f\"", "%\"\x7f\"", `%'foo'`, `%foo`, `%foo"`, `%"foo`, `%`, `%"`,
				`% "foo"`, `%"foo %a`, `%"foo %a"`, `%"foo %"`, `%"%"`, `%"%g0"`, `%"%0g"`, `%"%0`, `%"%0:"`, `%"%/0"`, `%"%`, "%\"\t",
				`%"%c3%28"`, `%"%a0%a1"`, `%"%e2%28%a1"`, `%"%f0%28%8c%28"`, `%"%ed%a0%80"`, `%"%c0%80"`, `%"füü"`}},
		{"nothing else", nil, []string{"(", "()", "(1 2)", "{}", "[]", "$", "<a>", "=", "=1", "\x00"}},
	} {
		t.Run(kind.name, func(t *testing.T) {
			for _, text := range kind.valid {
				isValue(t, true, text)
				if kind.name != "integers" { // only an integer can be a number of units or seconds
					readsAs(t, 0, `"a";t=5;r=`+text)
					readsAs(t, 0, `"a";r=0;t=`+text)
				}
			}
			for _, text := range kind.invalid {
				isValue(t, false, text)
			}
		})
	}
}

// An integer has the same value in each of the ways to write it.
func TestIntegersHaveTheirValues(t *testing.T) {
	for digits := 1; digits <= 15; digits++ {
		ones, zeros := strings.Repeat("1", digits), strings.Repeat("0", digits)
		readsAs(t, digits, fmt.Sprintf(`"a";r=%s;t=99, "b";r=%s;t=%d`, ones, zeros, digits))
	}
	for text, seconds := range map[string]int{"1": 1, "042": 42, "000000000000042": 42, "1234567890": 1234567890, "-0": 0, "-1": 0} {
		readsAs(t, seconds, `"a";r=0;t=`+text)
	}
	for digits := 1; digits <= 20; digits++ {
		isValue(t, digits <= 15, strings.Repeat("1", digits))
		isValue(t, digits <= 15, "-"+strings.Repeat("0", digits))
		for fraction := 0; fraction <= 5; fraction++ {
			valid := digits <= 12 && 1 <= fraction && fraction <= 3
			isValue(t, valid, strings.Repeat("9", digits)+"."+strings.Repeat("9", fraction))
		}
	}
}

const (
	lower  = "abcdefghijklmnopqrstuvwxyz"
	upper  = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	digits = "0123456789"
)

// Where the grammar has a class of characters, all 256 bytes are tried.
func TestCharactersAreReadAsTheWorkingGroupHasThem(t *testing.T) {
	quoted := " !#$%&'()*+,-./:;<=>?@[]^_`{|}~" + lower + upper + digits
	for _, class := range []struct {
		name, allowed string
		field         string // %s stands for the character
	}{
		{"in a string", quoted, `"a";r=0;t=5;x=" %s "`},
		{"in a name", quoted, `" %s ";r=0;t=5`},
		{"in a display string", strings.ReplaceAll(quoted, "%", "") + `\`, `"a";r=0;t=5;x=%%" %s "`},
		{"escaped in a string", `"\`, `"a";r=0;t=5;x="\%s"`},
		{"escaped in a name", `"\`, `"\%s";r=0;t=5`},
		// "," and ";" end the token, and another item or parameter follows.
		{"in a token", ":/!#$%&'*+-.^_`|~,;" + lower + upper + digits, `"a";r=0;t=5;x=a%sa`},
		{"in a name that is a token", ":/!#$%&'*+-.^_`|~,;" + lower + upper + digits, `a%sa;r=0;t=5`},
		{"first of a token", "*" + lower + upper, `"a";r=0;t=5;x=%sa`},
		{"first of a name that is a token", "* " + lower + upper, `%sa;r=0;t=5`},
		{"in a key", "_-.*,;=" + lower + digits, `"a";r=0;t=5;a%sa`},
		{"first of a key", "* " + lower, `"a";r=0;t=5;%sa=1`},
		{"alone as a key", "*" + lower, `"a";x;%s;r=0;t=5`},
		{"alone as a boolean", "01", `"a";r=0;t=5;x=?%s`},
		{"alone as a number", digits, `"b";r=0;t=5;x=-%s`},
		{"second of a fraction", digits, `"a";r=0;t=5;x=1.0%s0`},
		{"alone as a date", digits, `"b";r=0;t=5;x=@%s`},
		{"in a byte sequence", "+/" + lower + upper + digits, `"a";r=0;t=5;x=:A%sAA:`},
		{"first hexadecimal digit", "01234567", `"a";r=0;t=5;x=%%"%%%s0"`},
		{"second hexadecimal digit", "0123456789abcdef", `"a";r=0;t=5;x=%%"%%0%s"`},
		{"after an item", " \t", `"a";r=0;t=5;x=""%s`},
		{"between an item and a comma", " \t", `"a";r=0;t=5;x=""%s, b`},
		{"between a comma and an item", " \t*" + lower + upper, `"a";r=0;t=5,%sb`},
		{"before a semicolon", "", `"a"%s;r=0;t=5`},
		{"before an equals sign", "_-.*" + lower + digits, `"a";r=0;t=5;b%s=1`},
		{"after an equals sign", "-@?*" + lower + upper + digits, `"a";r=0;t=5;b=%s1`},
		{"before an item", " ", `%s"a";r=0;t=5`},
	} {
		t.Run(class.name, func(t *testing.T) {
			for b := range 256 {
				c := string([]byte{byte(b)})
				want := 0
				if strings.Contains(class.allowed, c) {
					want = 5
				}
				readsAs(t, want, fmt.Sprintf(class.field, c))
			}
		})
	}
}

// The cases are parameters, lists, and the white space that may be in them.
func TestListsAreReadAsTheWorkingGroupHasThem(t *testing.T) {
	for _, tt := range []struct {
		seconds int
		lines   []string
	}{
		{5, []string{`"a";r=0;t=5`}},
		{9, []string{`"a";r=0;t=5,"b";r=0;t=9`}},
		{9, []string{`"a";r=0;t=5 , "b";r=0;t=9`}},
		{9, []string{"\"a\";r=0;t=5\t,\t\"b\";r=0;t=9"}},
		{9, []string{`  "a";  r=0;  t=5  ,  "b";r=0;  t=9  `}},
		{9, []string{`"a";r=0;t=5`, `"b";r=0;t=9`}},
		{9, []string{`"a";r=0;t=5, b`, `c;x="d";r=0;t=9;y`}},
		{5, []string{`abc_123;r=0;t=5; cdef_456, ghi;q=9;r="+w"`}},
		{5, []string{`"a";r=0;t=9;t=5`}},          // of two parameters of one name the last counts
		{9, []string{`"a";r=0;t=5, "a";r=0;t=9`}}, // two items of a list both count
		{0, nil},
		{0, []string{`"a";r=0;t=5`, ``}},
	} {
		readsAs(t, tt.seconds, tt.lines...)
	}
	for _, malformed := range []string{
		"", "  ", `"a";r=0;t=5,`, `"a";r=0;t=5, `, `,"a";r=0;t=5`, `"a";r=0;t=5,,"b"`, `"a";r=0;t=5 "b"`,
		`"a" ;r=0;t=5`, `"a";r=0 ;t=5`, `"a";r =0;t=5`, `"a";r= 0;t=5`, `"a";r=0;t=`, "\"a\";\tr=0;t=5",
		`"a";r=0;t=5;`, `"a";;r=0;t=5`, `"a";=1;r=0;t=5`, `"a"r=0;t=5`, `;r=0;t=5`,
	} {
		readsAs(t, 0, malformed)
	}
}

// Only numbers have a bound on their length. Items, parameters and names have none.
func TestLongFieldsAreReadAsTheWorkingGroupHasThem(t *testing.T) {
	var members, params strings.Builder
	for i := range 1024 {
		fmt.Fprintf(&members, `a%d;r=0;t=%d;a%d=1, `, i, i, i)
		fmt.Fprintf(&params, `;a%d=1`, i)
	}
	long := strings.Repeat("a", 1024)
	readsAs(t, 1023, members.String()+`"last"`)
	readsAs(t, 5, `"a"`+params.String()+`;r=0;t=5`)
	readsAs(t, 5, `"a";r=0;t=5;`+long+`=1`)
	isValue(t, true, long)
	isValue(t, true, `"`+strings.Repeat("=", 1024)+`"`)
	isValue(t, true, `"`+strings.Repeat(`\"`, 1024)+`"`)
	isValue(t, true, `:`+strings.Repeat("aaaa", 1024)+`:`)
	readsAs(t, 5, long+`;r=0;t=5`)
	readsAs(t, 5, `"`+long+`";r=0;t=5`)
}

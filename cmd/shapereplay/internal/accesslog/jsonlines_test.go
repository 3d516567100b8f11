package accesslog

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/valyala/fastjson"
)

// FuzzFields looks for values in objects, and compares them with the values that a library finds
// which makes all of them.
func FuzzFields(f *testing.F) {
	for _, text := range []string{
		` {"a": 1.5e3, "x": [{"a": "}"}, [], {}], "b": {"c": "d\"\\", "x": {"c": 1}}} `,
		`{"\u0061":"\u00e9","b":{"c":{"d":null}},"b":{"e":true}}`,
		`{"x":NaN,"a":-inf,"b":[true,false,null,-1],"e":""}`,
		`{"a":1,}`, `{"a":tru}`, `{"a":-}`, `{"a" 1}`, `{"a":1}}`, `{"a":1`, `{"a":"`, `{"a`, `{`, ``, `{}`, `[1]`, `{"a":[1}`, `{1:2}`,
		`{"a":` + strings.Repeat("[", 400) + strings.Repeat("]", 400) + `}`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var p fastjson.Parser
		v, err := p.Parse(text)
		isObject := err == nil && v.Type() == fastjson.TypeObject
		paths := [][]string{{"a"}, {"b"}, {"b", "c"}, {"b", "c", "d"}, {"b", "e"}, {"e"}, {"é"}}
		var all fields
		for i, path := range paths {
			all.want(path...)
			require.Equal(t, i, all.want(path...))
		}
		for range 2 { // The second time, the names are those of the line before.
			ok := all.read([]byte(text))
			require.True(t, isObject || !ok)
			require.True(t, ok || !isObject || !json.Valid([]byte(text)))
			for i := 0; ok && i < len(paths); i++ {
				want := v.Get(paths[i]...)
				require.Equal(t, want != nil, all.values[i] != nil, paths[i])
				if want != nil && want.Type() == fastjson.TypeString {
					require.Equal(t, string(want.GetStringBytes()), string(all.text(all.values[i])))
				} else if want != nil && want.Type() == fastjson.TypeNumber {
					require.Equal(t, want.String(), string(all.values[i]))
				}
			}
		}
	})
}

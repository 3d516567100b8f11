package accesslog_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/cmd/shapereplay/internal/accesslog"
)

func TestTimesAreReadInEveryUsualForm(t *testing.T) {
	exact := noon.Add(123456789)
	for text, want := range map[string]time.Time{
		`"2026-11-22T12:00:00Z"`:           noon,
		`"2026-11-22T13:30:00+01:30"`:      noon,
		`"2026-11-22T12:00:00.123456789Z"`: exact,
		`"2026-11-22T12:00:00.123+0000"`:   noon.Add(123e6),
		`"2026-11-22 12:00:00,123"`:        noon.Add(123e6),
		`"2026-11-22 12:00:00.123456789"`:  exact,
		`"2026-11-22 07:00:00 -0500"`:      noon,
		`"2026-11-22T12:00:00"`:            noon,
		`"2026/11/22 12:00:00"`:            noon,
		`"22/Nov/2026:12:00:00 +0000"`:     noon,
		`"22/Nov/2026:11:29:60 -0030"`:     noon, // a leap second
		`1795348800`:                       noon,
		`"1795348800"`:                     noon,
		`1795348800.123456789`:             exact,
		`1795348800.1234567891`:            exact,
		`1.7953488e9`:                      noon,
		`1795348800123`:                    noon.Add(123e6),
		`1795348800123.456789`:             exact,
		`1795348800123456`:                 noon.Add(123456e3),
		`1795348800123456789`:              exact,
	} {
		records, stats := readText(t, accesslog.Options{}, fmt.Sprintf(`{"time":%s,"method":"GET","path":"/"}`, text))
		require.Len(t, records, 1, text)
		require.Equal(t, want, records[0].At, text)
		require.Equal(t, want.Nanosecond() == 0 && text != "1.7953488e9", stats.Coarse == 1, text)
	}
	for _, text := range []string{
		`""`, `"now"`, `"22/nov/2026:12:00:00 +0000"`, `"22/Nov/2026:24:00:00 +0000"`, `"22/Nov/2026:12:00:61 +0000"`,
		`"31/Nov/2026:12:00:00 +0000"`, `"00/Nov/2026:12:00:00 +0000"`, `"22/Nov/2026:12:00:00 00000"`, `"22/Nov/20x6:12:00:00 +0000"`,
		`"22/Nov/2026 12:00:00 +00:00"`, `"2026-11-32T12:00:00Z"`, `"2026-11-22"`, `"1969-12-31T23:59:59Z"`, `"2263-01-01T00:00:00Z"`,
		`-1795348800`, `9300000000`, `99999999999999999999`, `1e30`, `"1795348800."`, `"1795348800 s"`, `null`, `true`, `{}`, `12`,
	} {
		_, stats := readText(t, accesslog.Options{Format: accesslog.JSON}, fmt.Sprintf(`{"time":%s,"method":"GET","path":"/"}`, text))
		require.Equal(t, map[accesslog.Reason]int{accesslog.NoTime: 1}, stats.Broken, text)
	}
}

func TestDurationsAreReadInTheirUnit(t *testing.T) {
	for text, want := range map[string]time.Duration{
		`12`: 12 * time.Millisecond, `"12"`: 12 * time.Millisecond, `0.000001`: time.Nanosecond, `1e-3`: time.Microsecond,
		`"1.5s"`: 1500 * time.Millisecond, `"15µs"`: 15 * time.Microsecond, `-3`: 0, `"-3s"`: 0, `"-"`: 0, `null`: 0, `1e40`: 0, `9e15`: 0,
	} {
		line := fmt.Sprintf(`{"time":1795348800,"method":"GET","path":"/","ms":%s}`, text)
		fields := accesslog.Fields{Duration: "ms", DurationUnit: time.Millisecond}
		records, _ := readText(t, accesslog.Options{Fields: fields}, line)
		require.Len(t, records, 1, text)
		require.Equal(t, want, records[0].Duration, text)
	}
}

package shared_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper/shared"
)

func TestOneProcessKeepsAKey(t *testing.T) {
	const lease = 3 * time.Second
	type asked struct {
		at    float64 // seconds
		id    string
		lease time.Duration
		value string

		keeper, told string
	}
	for _, c := range []struct {
		name  string
		state shared.KeepState
		asked []asked
	}{
		{"the first keeps it while it asks", shared.KeepState{}, []asked{
			{0, "a", 0, "look", "", ""}, {0, "a", lease, "1", "a", ""}, {1, "b", lease, "b", "a", ""}, {1, "a", lease, "2", "a", "2"},
			{1, "b", lease, "b", "a", "2"}, {3.999999, "a", lease, "3", "a", "3"}, {6.999998, "b", lease, "b", "a", "3"},
		}},
		{"a lease that has ended frees it, and the value stays", shared.KeepState{}, []asked{
			{0, "a", lease, "", "a", ""}, {1, "a", lease, "1", "a", "1"}, {4, "b", lease, "b", "b", "1"}, {4, "a", lease, "late", "b", "1"}, {5, "b", lease, "2", "b", "2"},
			{8, "c", 0, "", "", "2"}, {8, "b", lease, "3", "b", "2"}, {9, "c", 0, "", "b", "2"},
		}},
		{"it is given up with a value", shared.KeepState{}, []asked{
			{0, "a", time.Minute, "", "a", ""}, {1, "b", 0, "b", "a", ""}, {59.999999, "a", 0, "last", "", "last"}, {59.999999, "a", 0, "again", "", "last"},
			{60, "c", 0, "", "", "last"}, {60, "b", lease, "b", "b", "last"}, {63, "b", 0, "too late", "", "last"},
		}},
		{"a lease has its keeper's length after the clock has gone back", shared.KeepState{ID: "a", Lease: lease, Ends: t0 + 3600*second, Value: []byte("1")}, []asked{
			{0, "b", 0, "", "a", "1"}, {2.999999, "b", time.Millisecond, "b", "a", "1"}, {3, "b", lease, "b", "b", "1"}, {-100, "b", lease, "2", "b", "2"},
			{-97.000001, "c", lease, "c", "b", "2"}, {-97, "c", lease, "c", "c", "2"},
		}},
		{"a number out of its range", shared.KeepState{ID: "a", Lease: lease, Ends: 1<<53 + 1, Value: []byte("1")}, []asked{{0, "b", lease, "b", "b", ""}}},
		{"a lease that is too long", shared.KeepState{ID: "a", Lease: time.Minute + time.Millisecond, Ends: t0 + 1, Value: []byte("1")}, []asked{{0, "b", lease, "b", "b", ""}}},
		{"a lease that is no number of milliseconds", shared.KeepState{ID: "a", Lease: time.Microsecond, Ends: t0 + 1, Value: []byte("1")}, []asked{{0, "b", lease, "b", "b", ""}}},
		{"a keeper without a lease", shared.KeepState{ID: "a", Ends: t0 + 1, Value: []byte("1")}, []asked{{0, "b", lease, "b", "b", ""}}},
		{"a keeper whose lease has no end", shared.KeepState{ID: "a", Lease: lease, Ends: 0, Value: []byte("1")}, []asked{{0, "b", lease, "b", "b", ""}}},
		{"a lease without a keeper", shared.KeepState{Lease: lease, Ends: t0 + 1, Value: []byte("1")}, []asked{{0, "b", lease, "b", "b", ""}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := c.state
			for _, k := range c.asked {
				now := t0 + int64(k.at*1e6)
				next, got := shared.Keeping{Key: "k", ID: k.id, Lease: k.lease, Value: []byte(k.value)}.Apply(s, now)
				require.Equal(t, [...]any{k.keeper, k.told, now}, [...]any{got.ID, string(got.Value), got.Now}, "%+v", k)
				s = next
			}
		})
	}
}

func TestCheckSaysWhyAKeepingCanNotBeAskedFor(t *testing.T) {
	whole := shared.Keeping{Key: "key", ID: "a", Lease: time.Minute, Value: make([]byte, 1<<20)}
	require.NoError(t, whole.Check())
	require.NoError(t, shared.Keeping{Key: "key", ID: "a"}.Check())
	for want, change := range map[string]func(*shared.Keeping){
		"the key is empty":                          func(k *shared.Keeping) { k.Key = "" },
		"the ID is empty":                           func(k *shared.Keeping) { k.ID = "" },
		"a Lease of -1ms is out of its range":       func(k *shared.Keeping) { k.Lease = -time.Millisecond },
		"a Lease of 1m0.001s is out of its range":   func(k *shared.Keeping) { k.Lease += time.Millisecond },
		"a Lease of 1.5ms is out of its range":      func(k *shared.Keeping) { k.Lease = 1500 * time.Microsecond },
		"a Value of 1048577 bytes is out of its ra": func(k *shared.Keeping) { k.Value = make([]byte, 1<<20+1) },
	} {
		k := whole
		change(&k)
		require.ErrorContains(t, k.Check(), want)
	}
}

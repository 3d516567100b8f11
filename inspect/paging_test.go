package inspect_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/inspect"
	"example.com/leakybucket/shaper"
)

// values are what the orders sort by, read from the API, in the words of its document.
var values = map[string]func(b bucket) float64{
	"key":         func(bucket) float64 { return 0 },
	"waiting":     func(b bucket) float64 { return float64(b.Waiting) },
	"level":       func(b bucket) float64 { return b.Level },
	"fill":        func(b bucket) float64 { return b.Fill },
	"idle":        func(b bucket) float64 { return *b.Idle },
	"last_call":   func(b bucket) float64 { return -*b.Idle },
	"refused":     func(b bucket) float64 { return float64(b.Refused) },
	"departed":    func(b bucket) float64 { return float64(b.Departed) },
	"abandoned":   func(b bucket) float64 { return float64(b.Abandoned) },
	"oldest_wait": func(b bucket) float64 { return b.OldestWait },
}

// naive sorts buckets, slowly and obviously.
func naive(buckets []bucket, sort string) []bucket {
	sorted := slices.Clone(buckets)
	name, descending := strings.CutPrefix(sort, "-")
	slices.SortFunc(sorted, func(a, b bucket) int {
		by := cmp.Compare(values[name](a), values[name](b))
		byKey := cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Key, b.Key))
		if descending {
			by = -by
			if name == "key" {
				byKey = -byKey
			}
		}
		return cmp.Or(by, byKey)
	})
	return sorted
}

// A herd is a Group with buckets of all kinds. Those whose keys begin with "stays" are
// not touched any more once they are made, and leak so slowly that they stay.
type herd struct {
	t      *testing.T
	random *rand.Rand
	g      *shaper.Group[string]
	came   int
}

func newHerd(t *testing.T, seed uint64) *herd {
	h := &herd{t: t, random: rand.New(rand.NewPCG(seed, 14))}
	g, err := shaper.NewGroup(func(key string) (shaper.Limits, error) {
		if strings.HasPrefix(key, "goes") {
			return shaper.Limits{Rate: 2}, nil // It is drained and deleted in half a second.
		}
		rates := []rate.Limit{1e-3, 3e-4, 1e-4}
		return shaper.Limits{Rate: rates[len(key)%3], Burst: 1 + len(key)%5, Depth: 3}, nil
	})
	require.NoError(t, err)
	h.g = g
	for k := range 60 {
		key := fmt.Sprintf("stays %d%s", k, strings.Repeat("x", h.random.IntN(7)))
		for range 1 + h.random.IntN(9) {
			h.g.AllowN(key, 1+h.random.IntN(2))
		}
		if k%4 == 0 {
			lineUp(t, g, key, h.random.IntN(4))
		}
		if k%3 == 0 {
			time.Sleep(time.Duration(h.random.IntN(3)) * time.Second)
		}
	}
	return h
}

// change lets time go by, in which buckets come and go.
func (h *herd) change() {
	for range h.random.IntN(10) {
		h.came++
		for range 1 + h.random.IntN(5) {
			h.g.Allow(fmt.Sprintf("%s %d", []string{"goes", "comes", "a comes"}[h.random.IntN(3)], h.came))
		}
	}
	time.Sleep(time.Duration(h.random.IntN(3000)) * time.Millisecond)
}

// While keys come and go, a bucket that is not touched is on exactly one page, in its
// order, and none is there twice.
func TestPagingIsRightWhileKeysComeAndGo(t *testing.T) {
	rounds := 2
	if testing.Short() {
		rounds = 1
	}
	for sort := range values {
		for _, sort := range []string{sort, "-" + sort} {
			for seed := range uint64(rounds) {
				t.Run(fmt.Sprint(sort, seed), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { pageThrough(t, newHerd(t, seed), sort) })
				})
			}
		}
	}
}

func pageThrough(t *testing.T, h *herd, sort string) {
	i := inspect.New()
	defer i.Close()
	s, err := shaper.New(shaper.Limits{Rate: 1e-4, Burst: 5})
	require.NoError(t, err)
	require.True(t, s.AllowN(3))
	i.Add("stays too", inspect.Of(s))
	i.Add("herd", inspect.OfGroup(h.g))
	h.change()
	time.Sleep(time.Second)

	stays := func(b bucket) bool { return b.Source == "stays too" || strings.HasPrefix(b.Key, "stays") }
	var want, got []string
	for _, b := range naive(listOf(t, i, "limit=1000").Buckets, sort) {
		if stays(b) {
			want = append(want, b.Source+b.ID)
		}
	}
	require.Len(t, want, 61)
	met := map[string]bool{}
	for cursor := ""; ; h.change() {
		l := listOf(t, i, url.Values{"sort": {sort}, "cursor": {cursor}, "limit": {fmt.Sprint(1 + h.random.IntN(12))}}.Encode())
		for _, b := range l.Buckets {
			require.Falsef(t, met[b.Source+b.ID], "%q is there twice", b.Key)
			met[b.Source+b.ID] = true
			if stays(b) {
				got = append(got, b.Source+b.ID)
			}
		}
		if l.Next == nil {
			break
		}
		cursor = *l.Next
	}
	require.Equal(t, want, got)
}

func TestACursorOfAnotherOrderIsRefused(t *testing.T) {
	g := groupOf(t, "1/d")
	g.Allow("a")
	g.Allow("b")
	i := inspect.New()
	defer i.Close()
	i.Add("one", inspect.OfGroup(g))
	first := listOf(t, i, "sort=key&limit=1")
	require.NotNil(t, first.Next)
	require.Equal(t, []string{"b"}, listOf(t, i, "sort=key&limit=1&cursor="+*first.Next).keys())
	for _, sort := range []string{"-key", "waiting", "-waiting"} {
		w := ask(i, "/api/buckets?sort="+sort+"&cursor="+*first.Next)
		require.Equal(t, 400, w.Code)
		require.Contains(t, w.Body.String(), `of a list sorted by \"key\", not by \"`+sort+`\"`)
	}
}

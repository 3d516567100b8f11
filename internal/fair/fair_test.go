package fair_test

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/fair"
)

// An oracle is the slow and obvious form of an Order: its requests are a slice, and the least tag of
// a head is searched for. Tags are fractions.
type oracle struct {
	requests []*request // in the order in which they entered
	keys     map[string]*payer
	paid     *big.Rat // the greatest tag of a departure
	latest   *payer   // of the latest departure; nil: it was undone
	heads    int

	retryAheadOfAll bool // a mistake: a reentry leaves before the heads of all other keys
}

// A payer is a key with its line.
type payer struct {
	weight int
	line   []*request
	base   *big.Rat // with what it began
	cost   *big.Int // what it has paid for since then
	head   int      // the number of its present head among all heads
}

type request struct {
	key     string
	cost    int64
	reentry bool
	item    *fair.Item[int]
	name    int
}

func newOracle() *oracle { return &oracle{keys: make(map[string]*payer), paid: new(big.Rat)} }

// after returns what a key has paid when it has paid for a sum of costs, rounded down to 2⁻³².
func (p *payer) after(costs *big.Int) *big.Rat {
	share := new(big.Int).Lsh(costs, 32)
	share.Div(share, big.NewInt(int64(p.weight))) // Div rounds towards minus infinity.
	return new(big.Rat).Add(p.base, new(big.Rat).SetFrac(share, new(big.Int).Lsh(big.NewInt(1), 32)))
}

// tag returns the tag of the k-th request of the key, from 0; of the newest, if it were one more, for
// k = −1 it is what has been paid.
func (p *payer) tag(k int) *big.Rat {
	costs := new(big.Int).Set(p.cost)
	for _, r := range p.line[:k+1] {
		costs.Add(costs, big.NewInt(r.cost))
	}
	return p.after(costs)
}

func (o *oracle) enter(r *request, weight int) {
	p := o.keys[r.key]
	if p == nil {
		p = &payer{weight: weight, base: new(big.Rat).Set(o.paid), cost: new(big.Int)}
		o.keys[r.key] = p
	}
	at := len(p.line)
	if r.reentry {
		at = 0
		for at < len(p.line) && p.line[at].reentry {
			at++
		}
	}
	p.line = slices.Insert(p.line, at, r)
	o.requests = append(o.requests, r)
	if at == 0 {
		o.heads++
		p.head = o.heads
	}
}

// next returns the request that leaves next.
func (o *oracle) next() (found *request) {
	var best *payer
	for _, p := range o.keys {
		if best == nil {
			best = p
		} else if o.retryAheadOfAll && p.line[0].reentry != best.line[0].reentry {
			if p.line[0].reentry {
				best = p
			}
		} else if c := p.tag(0).Cmp(best.tag(0)); c < 0 || c == 0 && p.head < best.head {
			best = p
		}
	}
	if best == nil {
		return nil
	}
	return best.line[0]
}

func (o *oracle) depart() {
	r := o.next()
	p := o.keys[r.key]
	if tag := p.tag(0); tag.Cmp(o.paid) > 0 {
		o.paid = tag
	}
	p.cost.Add(p.cost, big.NewInt(r.cost))
	o.latest = p
	o.drop(r)
}

func (o *oracle) drop(r *request) {
	p := o.keys[r.key]
	at := slices.Index(p.line, r)
	p.line = slices.Delete(p.line, at, at+1)
	o.requests = slices.DeleteFunc(o.requests, func(q *request) bool { return q == r })
	switch {
	case len(p.line) == 0:
		delete(o.keys, r.key)
	case at == 0:
		o.heads++
		p.head = o.heads
	}
}

func (o *oracle) giveBack(key string, cost int64) {
	p := o.keys[key]
	if p == nil {
		return
	}
	had := p.after(p.cost)
	p.cost.Sub(p.cost, big.NewInt(cost))
	isLatest := p == o.latest
	if o.latest = nil; isLatest {
		return
	}
	least := (&payer{weight: p.weight, base: o.paid}).after(big.NewInt(-cost))
	if had.Cmp(least) < 0 {
		least = had
	}
	if now := p.after(p.cost); now.Cmp(least) < 0 {
		p.base.Add(p.base, least.Sub(least, now))
	}
}

// outlasting returns the request that would leave last; nil if it is a newcomer.
func (o *oracle) outlasting(key string, weight int, cost int64) *request {
	with := o.clone()
	new := &request{key: key, cost: cost, name: -1}
	with.enter(new, weight)
	var last *payer
	for _, p := range with.keys {
		if p.line[len(p.line)-1].reentry {
			continue
		}
		if last == nil || with.outlasts(p, last) {
			last = p
		}
	}
	if r := last.line[len(last.line)-1]; r != new {
		return r
	}
	return nil
}

// outlasts reports whether the last request of a key is to be refused rather than that of another.
func (o *oracle) outlasts(p, q *payer) bool {
	if c := p.tag(len(p.line) - 1).Cmp(q.tag(len(q.line) - 1)); c != 0 {
		return c > 0
	}
	if c := p.tag(-1).Cmp(q.tag(-1)); c != 0 {
		return c < 0
	}
	return slices.Index(o.requests, p.line[len(p.line)-1]) > slices.Index(o.requests, q.line[len(q.line)-1])
}

func (o *oracle) clone() *oracle {
	c := *o
	c.requests, c.keys, c.paid = slices.Clone(o.requests), make(map[string]*payer), new(big.Rat).Set(o.paid)
	for key, p := range o.keys {
		c.keys[key] = &payer{p.weight, slices.Clone(p.line), new(big.Rat).Set(p.base), new(big.Int).Set(p.cost), p.head}
	}
	return &c
}

// rest returns the requests in the order in which they leave.
func (o *oracle) rest() (order []*request) {
	c := o.clone()
	for r := c.next(); r != nil; r = c.next() {
		order = append(order, r)
		c.depart()
	}
	return order
}

// source is where the choices of a play come from; it returns a number below n.
type source func(n int) int

// play does the same to an Order and to its oracle, and compares all that they say. The oracle may make its mistake.
func play(t require.TestingT, steps int, below source, retryAheadOfAll bool) {
	keys := []string{"", "a", "b", "c", "d", "e"}
	weights := []int{1, 1, 2, 3, 7, 10, 1000}
	costs := []int64{1, 1, 1, 1, 2, 3, 5, 6, 1000, math.MaxInt64}
	if below(2) == 0 {
		costs = costs[:1]
	}
	if below(2) == 0 {
		weights = weights[:1]
	}
	var order fair.Order[int]
	model := newOracle()
	model.retryAheadOfAll = retryAheadOfAll
	var left []*request // departures that may be undone, the latest last
	for step := range steps {
		key, weight, cost := keys[below(len(keys))], weights[below(len(weights))], costs[below(len(costs))]
		switch kind := below(12); {
		case kind < 5:
			compareNewcomer(t, &order, model, key, weight, cost)
			r := &request{key: key, cost: cost, name: step}
			r.item = order.Push(key, weight, cost, step)
			model.enter(r, weight)
			left = nil
		case kind < 6:
			r := &request{key: key, cost: cost, name: step, reentry: true}
			n, sum := order.Ahead(key, weight, cost, true, nil)
			r.item = order.PushReentry(key, weight, cost, step)
			model.enter(r, weight)
			wantN, wantSum := model.ahead(r)
			require.Equal(t, wantN, n, "step %d: a reentry of %q", step, key)
			require.Equal(t, wantSum, sum)
			left = nil
		case kind < 9:
			if r := model.next(); r != nil {
				order.Depart()
				model.depart()
				left = append(left, r)
			}
		case kind < 11:
			if len(model.requests) > 0 {
				r := model.requests[below(len(model.requests))]
				order.Remove(r.item)
				model.drop(r)
			}
		case len(left) > 0:
			r := left[len(left)-1]
			left = left[:len(left)-1]
			require.Equal(t, model.keys[r.key] != nil, order.GiveBack(r.key, r.cost))
			model.giveBack(r.key, r.cost)
		}
		compare(t, &order, model, step)
	}
}

// ahead returns how many requests leave before one that is there, and their cost.
func (o *oracle) ahead(r *request) (n int, sum int64) {
	for _, q := range o.rest() {
		if q == r {
			break
		}
		n++
		if sum += q.cost; sum < 0 {
			sum = math.MaxInt64
		}
	}
	return n, sum
}

func compareNewcomer(t require.TestingT, order *fair.Order[int], model *oracle, key string, weight int, cost int64) {
	over, want := order.Outlasting(key, weight, cost), model.outlasting(key, weight, cost)
	with := model.clone()
	if want == nil {
		require.Nil(t, over)
	} else {
		require.Same(t, want.item, over)
		with.drop(want)
	}
	for _, without := range []*fair.Item[int]{over, nil} {
		r := &request{key: key, cost: cost}
		with.enter(r, weight)
		wantN, wantSum := with.ahead(r)
		n, sum := order.Ahead(key, weight, cost, false, without)
		require.Equal(t, wantN, n, "a newcomer of %q", key)
		require.Equal(t, wantSum, sum)
		with = model.clone()
	}
}

func compare(t require.TestingT, order *fair.Order[int], model *oracle, step int) {
	rest := model.rest()
	next := order.Walk()
	for i, r := range rest {
		require.Same(t, r.item, next(), "step %d: the %d-th to leave", step, i)
	}
	require.Nil(t, next())
	require.Equal(t, len(model.keys), order.Keys())
	if len(rest) == 0 {
		require.Nil(t, order.Head())
		require.Nil(t, order.Last())
		return
	}
	require.Same(t, rest[0].item, order.Head())
	require.Same(t, rest[len(rest)-1].item, order.Last())
	for key, p := range model.keys {
		first, newcomer := p.line[0], slices.IndexFunc(p.line, func(r *request) bool { return !r.reentry })
		line := first.item.Line()
		require.Equal(t, []any{key, p.weight, len(p.line)}, []any{line.Key, line.Weight, line.Waiting})
		require.Same(t, first.item, line.First)
		require.True(t, first.item.IsFirst())
		if newcomer < 0 {
			require.Nil(t, line.FirstNewcomer)
		} else {
			require.Same(t, p.line[newcomer].item, line.FirstNewcomer)
		}
		cost := new(big.Int)
		for _, r := range p.line {
			cost.Add(cost, big.NewInt(r.cost))
		}
		if !cost.IsInt64() {
			cost.SetInt64(math.MaxInt64)
		}
		require.Equal(t, cost.Int64(), line.Cost)
	}
}

func TestOrderIsThatOfTheOracle(t *testing.T) {
	for seed := range uint64(40) {
		chance := rand.New(rand.NewPCG(seed, 1))
		play(t, 60, chance.IntN, false)
	}
}

// That a retry is ahead of its own key alone is seen: with an oracle that puts it ahead of all keys, each
// play differs.
func TestARetryAheadOfAllKeysIsTold(t *testing.T) {
	for seed := range uint64(40) {
		chance, differs := rand.New(rand.NewPCG(seed, 1)), differing(false)
		var done sync.WaitGroup
		done.Go(func() { play(&differs, 60, chance.IntN, true) })
		done.Wait()
		require.True(t, bool(differs), "seed %d", seed)
	}
}

// A differing reports whether a play has ended because the Order and the oracle differ.
type differing bool

func (d *differing) Errorf(string, ...any) {}

func (d *differing) FailNow() {
	*d = true
	runtime.Goexit()
}

// A key may have paid less than others when its dear request gives up. What it gets back for a departure that is undone
// is nevertheless all that it paid for it.
func TestATurnIsGivenBackWhole(t *testing.T) {
	var order fair.Order[string]
	dear := order.Push("a", 1, 9, "dear")
	for range 12 {
		order.Push("b", 1, 1, "b")
	}
	for range 5 {
		order.Depart()
	}
	order.Push("a", 1, 3, "gone")
	for range 8 {
		order.Push("a", 1, 1, "a")
	}
	order.Remove(dear)
	require.Equal(t, "gone", order.Head().Value)
	order.Depart()
	require.True(t, order.GiveBack("a", 3))
	var left string
	for order.Head() != nil {
		left += order.Head().Value
		order.Depart()
	}
	require.Equal(t, "aaaaababababbbb", left, "b has paid for 5 of 12")
}

// Costs above the most that matters may be told too small, but never as less than that.
func TestACountingEndsWhereItNeedNotGoOn(t *testing.T) {
	var order fair.Order[int]
	chance := rand.New(rand.NewPCG(1, 6))
	for i := range 20_000 {
		order.Push(strconv.Itoa(chance.IntN(6000)), 1+chance.IntN(3), 1+chance.Int64N(5), i)
	}
	cut := 0
	for range 300 {
		key, cost, reentry := strconv.Itoa(chance.IntN(7000)), 1+chance.Int64N(9), chance.IntN(5) == 0
		var over *fair.Item[int]
		if !reentry {
			over = order.Outlasting(key, 1, cost)
		}
		wantN, want := order.Ahead(key, 1, cost, reentry, over)
		most := chance.Int64N(want+2) - 1
		if chance.IntN(3) == 0 {
			most = want + chance.Int64N(3)
		}
		n, sum := order.AheadUpTo(key, 1, cost, reentry, over, most)
		if n == wantN {
			require.Equal(t, want, sum)
			continue
		}
		cut++
		require.Greater(t, want, most)
		require.Greater(t, sum, most)
		require.Greater(t, n, fair.Counted)
	}
	require.Greater(t, cut, 50)
}

func FuzzOrder(f *testing.F) {
	f.Add([]byte("a burst of one key, and others now and then"))
	f.Add([]byte{0, 0, 1, 2, 3, 0, 1, 2, 3, 9, 8, 7, 11, 11, 11, 4, 4, 4})
	f.Fuzz(func(t *testing.T, data []byte) {
		play(t, min(len(data)/4, 80), func(n int) int {
			if len(data) == 0 {
				return 0
			}
			b := data[0]
			data = data[1:]
			return int(b) % n
		}, false)
	})
}

// A play by chance in which requests enter, leave and give up, that tells for each departure what
// left since each of those in line entered.
type bounds struct {
	order   fair.Order[*bounded]
	waiting []*bounded
	largest map[int]int64 // cost of each key, also of requests that gave up
}

type bounded struct {
	key    int
	cost   int64
	item   *fair.Item[*bounded]
	ahead  int           // of its key
	before int64         // cost of its key's line up to it, itself included
	keys   int           // the greatest number of keys that waited meanwhile
	left   map[int]int64 // of each key, since it entered
	count  int           // departures since it entered
}

func (b *bounds) keysWaiting() int {
	keys := make(map[int]bool)
	for _, r := range b.waiting {
		keys[r.key] = true
	}
	return len(keys)
}

func (b *bounds) enter(key, weight int, cost int64) *bounded {
	r := &bounded{key: key, cost: cost, left: make(map[int]int64), before: cost, ahead: 1}
	if b.largest == nil {
		b.largest = make(map[int]int64)
	}
	b.largest[key] = max(b.largest[key], cost)
	for _, other := range b.waiting {
		if other.key == key {
			r.ahead++
			r.before += other.cost
		}
	}
	r.item = b.order.Push(strconv.Itoa(key), weight, cost, r)
	b.waiting = append(b.waiting, r)
	n := b.keysWaiting()
	for _, r := range b.waiting {
		r.keys = max(r.keys, n)
	}
	return r
}

func (b *bounds) depart() *bounded {
	r := b.order.Head().Value
	b.order.Depart()
	b.waiting = slices.DeleteFunc(b.waiting, func(o *bounded) bool { return o == r })
	r.count++
	for _, other := range b.waiting {
		other.count++
		other.left[r.key] += r.cost
	}
	return r
}

// Requests that give up are not counted down in those that entered behind them: the bounds hold all the
// more.
func (b *bounds) giveUp(r *bounded) {
	b.order.Remove(r.item)
	b.waiting = slices.DeleteFunc(b.waiting, func(o *bounded) bool { return o == r })
}

func TestTheKthOfAKeyLeavesWithinKTimesN(t *testing.T) {
	reached := 0
	for seed := range uint64(100) {
		chance := rand.New(rand.NewPCG(seed, 2))
		var b bounds
		for range 300 {
			switch kind := chance.IntN(20); {
			case kind < 9:
				b.enter(chance.IntN(6), 1, 1)
			case kind < 11 && len(b.waiting) > 0:
				b.giveUp(b.waiting[chance.IntN(len(b.waiting))])
			case len(b.waiting) > 0:
				r := b.depart()
				require.LessOrEqual(t, r.count, r.ahead*r.keys)
				if r.count == r.ahead*r.keys && r.keys > 1 {
					reached++
				}
			}
		}
	}
	require.Greater(t, reached, 500)
}

func TestOtherKeysLetNoMoreLeaveThanTheirShare(t *testing.T) {
	reached := 0
	weights := []int{1, 3, 8, 1, 2}
	for seed := range uint64(100) {
		chance := rand.New(rand.NewPCG(seed, 3))
		var b bounds
		for range 300 {
			switch kind := chance.IntN(20); {
			case kind < 10:
				key := chance.IntN(len(weights))
				b.enter(key, weights[key], 1+chance.Int64N(6))
			case kind < 11 && len(b.waiting) > 0:
				b.giveUp(b.waiting[chance.IntN(len(b.waiting))])
			case len(b.waiting) > 0:
				r := b.depart()
				for key, left := range r.left {
					if key == r.key {
						continue
					}
					// C·w(j)/w + L(j), in whole numbers.
					bound := r.before*int64(weights[key]) + b.largest[key]*int64(weights[r.key])
					require.LessOrEqual(t, left*int64(weights[r.key]), bound)
					if left*int64(weights[r.key]) == bound {
						reached++
					}
				}
			}
		}
	}
	require.Positive(t, reached)
}

// While two keys have requests in line, their shares differ by no more than their largest costs.
func TestSharesDifferByNoMoreThanALargestCostOfEach(t *testing.T) {
	weights := []int64{1, 3, 7, 2}
	for seed := range uint64(20) {
		chance := rand.New(rand.NewPCG(seed, 4))
		var b bounds
		const most = 6
		cost := func(key int) int64 { return 1 + chance.Int64N(most-int64(key)) }
		largest := func(key int) int64 { return most - int64(key) }
		for key, w := range weights {
			b.enter(key, int(w), cost(key))
			b.enter(key, int(w), cost(key))
		}
		var sums [][]int64
		left := make([]int64, len(weights))
		for range 150 {
			r := b.depart()
			left[r.key] += r.cost
			sums = append(sums, slices.Clone(left))
			b.enter(r.key, int(weights[r.key]), cost(r.key)) // So that all keys always wait.
			for _, before := range sums {
				for i, wi := range weights {
					for j, wj := range weights[:i] {
						differ := (left[i]-before[i])*wj - (left[j]-before[j])*wi
						if max(differ, -differ) > largest(i)*wj+largest(j)*wi {
							require.Fail(t, "unfair", "keys %d and %d: %v after %v", i, j, left, before)
						}
					}
				}
			}
		}
	}
}

// Keys without a line take no memory, whether they came one after the other or at once.
func TestAKeyThatHasLeftTakesNoMemory(t *testing.T) {
	var order fair.Order[int]
	before := heap()
	for i := range 200_000 {
		order.Push(strconv.Itoa(i), 1, 1, i)
		order.Depart()
	}
	require.Less(t, heap()-before, int64(16<<10), "one by one")
	const many = 50_000
	for i := range many {
		order.Push(strconv.Itoa(i), 1, 1, i)
	}
	full := heap() - before
	require.Less(t, full/many, int64(400), "a key with a request in line")
	for range many - 1 {
		order.Depart()
	}
	require.Less(t, heap()-before, int64(64<<10), "at once")
	require.Equal(t, 1, order.Keys())
	runtime.KeepAlive(&order)
}

// heap returns how many bytes are in use.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func BenchmarkOrder(b *testing.B) {
	for _, keys := range []int{1, 1000, 100_000} {
		var order fair.Order[int]
		for i := range keys {
			for range max(1, 1000/keys) {
				order.Push(strconv.Itoa(i), 1, 1, i)
			}
		}
		b.Run(fmt.Sprintf("enter and leave/keys=%d", keys), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				key := order.Head().Key()
				order.Depart()
				order.Push(key, 1, 1, 0)
			}
		})
		b.Run(fmt.Sprintf("who would leave last/keys=%d", keys), func(b *testing.B) {
			for b.Loop() {
				order.Outlasting("0", 1, 1)
			}
		})
		b.Run(fmt.Sprintf("how many are ahead/keys=%d", keys), func(b *testing.B) {
			for b.Loop() {
				order.Ahead("0", 1, 1, false, nil)
			}
		})
		b.Run(fmt.Sprintf("are more than 100 ahead/keys=%d", keys), func(b *testing.B) {
			for b.Loop() {
				order.AheadUpTo("0", 1, 1, false, nil, 100)
			}
		})
	}
}

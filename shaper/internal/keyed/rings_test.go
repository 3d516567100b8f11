package keyed

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A ring is in the order of its homes, and a key finds the first entry at its home or
// after it, across the end as well.
func TestAKeySharesTheNextEntryOfItsRing(t *testing.T) {
	var o Rings[int, int, string]
	p := "kind"
	flows := map[int16]*entry{}
	for _, home := range []int16{500, 0, 959, 7} {
		flows[home] = &entry{Home: home}
		o.Add(flows[home], p)
	}
	for home, want := range map[int16][2]int16{
		0: {0, 0}, 1: {7, 6}, 7: {7, 0}, 8: {500, 492}, 500: {500, 0}, 501: {959, 458}, 959: {959, 0},
	} {
		e, distance := o.next(home, p)
		require.Equal(t, want, [2]int16{e.Home, distance}, "from %d", home)
	}
	o.Remove(flows[0], p)
	o.Remove(flows[959], p)
	e, distance := o.next(600, p)
	require.Equal(t, [2]int16{7, 367}, [2]int16{e.Home, distance})
	o.Remove(flows[500], p)
	o.Remove(flows[7], p)
	e, _ = o.next(600, p)
	require.Nil(t, e)
}

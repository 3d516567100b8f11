package main

import (
	"flag"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPlanFromTheCommandLine(t *testing.T) {
	p, err := parsePlan(nil, io.Discard)
	require.NoError(t, err)
	require.Equal(t, plan{rounds: 5, rates: []int{100, 1000}, requests: 900, window: 2 * time.Second}, p)
	require.Equal(t, burst{rate: 100, requests: 200, every: 500 * time.Microsecond}, p.load(100))
	require.Equal(t, burst{rate: 1000, requests: 900, every: 300 * time.Microsecond}, p.load(1000))
	require.Equal(t, burst{rate: 1, requests: 20, every: 500 * time.Microsecond}, p.load(1))
	require.Equal(t, burst{rate: 10_000, requests: 900, every: 30 * time.Microsecond}, p.load(10_000))

	p, err = parsePlan([]string{"-quick", "-rates", "50, 7", "-json", "x.json"}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, plan{rounds: 1, rates: []int{50, 7}, requests: 900, window: 500 * time.Millisecond, json: "x.json"}, p)

	p, err = parsePlan([]string{"-quick", "-rounds", "3"}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, 3, p.rounds, "what is asked for is kept")
}

func TestBadFlagsAreNamedAndQuoted(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"-rounds", "0"}, `-rounds "0"`},
		{[]string{"-rounds", "many"}, `"many" for flag -rounds`},
		{[]string{"-rates", ""}, `-rates "": "" is not a whole number`},
		{[]string{"-rates", "100,x"}, `-rates "100,x": "x" is not a whole number`},
		{[]string{"-rates", "0"}, `-rates "0": 0 is not from 1 to 10000`},
		{[]string{"-rates", "10001"}, `-rates "10001": 10001 is not`},
		{[]string{"-rates", "5,5"}, `-rates "5,5": a rate stands there twice`},
		{[]string{"faster"}, `unexpected argument "faster"`},
		{[]string{"-full"}, `-full`},
	} {
		_, err := parsePlan(test.args, io.Discard)
		require.ErrorContains(t, err, test.want)
	}
	_, err := parsePlan([]string{"-h"}, io.Discard)
	require.ErrorIs(t, err, flag.ErrHelp)
}

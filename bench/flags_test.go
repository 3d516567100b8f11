package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/run"
)

func TestFlags(t *testing.T) {
	for _, test := range []struct {
		args    []string
		options run.Options
		names   string
		out     string
		command string
	}{
		{nil, run.Options{}, "pace, broken", "docs/bench", "go run ./bench"},
		{[]string{"-quick", "-out", ""}, run.Options{Quick: true}, "pace, broken", "", "go run ./bench -quick"},
		{[]string{"-rounds", "3"}, run.Options{Rounds: 3}, "pace, broken", "docs/bench", "go run ./bench -rounds 3"},
		{[]string{"-only", "broken"}, run.Options{}, "broken", "docs/bench", "go run ./bench -only broken"},
		// The order is the order of measuring, and twice is once.
		{[]string{"-only", "broken, pace,pace"}, run.Options{}, "pace, broken", "docs/bench", "go run ./bench -only pace,broken"},
	} {
		c, err := parseFlags(test.args, fakes())
		require.NoError(t, err, "%q", test.args)
		require.Equal(t, test.options, c.options, "%q", test.args)
		require.Equal(t, test.names, names(c.experiments), "%q", test.args)
		require.Equal(t, test.out, c.out, "%q", test.args)
		require.Equal(t, test.command, c.command(), "%q", test.args)
	}
}

func TestFlagsThatCannotBeFollowed(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"-only", "pase"}, `invalid value "pase" for flag -only: no experiment is named "pase"; there are pace, broken`},
		{[]string{"-only", ""}, `invalid value "" for flag -only: no experiment is named ""; there are pace, broken`},
		{[]string{"-only", "pace,"}, `invalid value "pace," for flag -only: no experiment is named ""; there are pace, broken`},
		{[]string{"-rounds", "0"}, `invalid value "0" for flag -rounds: must be at least 1`},
		{[]string{"-rounds", "101"}, `invalid value "101" for flag -rounds: must be at most 100`},
		{[]string{"-rounds", "few"}, `invalid value "few" for flag -rounds: must be a whole number`},
		{[]string{"-quick=maybe"}, `invalid boolean value "maybe" for -quick: parse error`},
		{[]string{"spacing"}, `unexpected argument "spacing"`},
		{[]string{"-fast"}, `flag provided but not defined: -fast`},
	} {
		_, err := parseFlags(test.args, fakes())
		require.EqualError(t, err, test.want)
	}
}

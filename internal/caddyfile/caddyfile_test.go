package caddyfile

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// That Caddy reads these words as they are meant is shown where Caddy is: by TestNamesOfTheGatewayAreReadAsTheyAre of shaperd.
func TestWordsOfACaddyfile(t *testing.T) {
	for text, want := range map[string]string{
		"a": "a", "": "``", "a b": "`a b`", "{a}": "`\\{a\\}`", "a`b": "\"a`b\"", "`\"": "\"`\\\"\"", `a\b`: "`a\\b`", "<<A": "`<<A`", "a\nb": "`a\nb`", "#": "`#`",
	} {
		got, err := Literal(text)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, text := range []string{"`{", "`}", "`\\"} {
		_, err := Literal(text)
		require.ErrorContains(t, err, "can't be written in a Caddyfile: it has a backtick, and a brace or a backslash")
	}
	_, err := Word("`\\")
	require.ErrorContains(t, err, "it has a backtick and a backslash")
	word, err := Word("{header.X-Team}")
	require.NoError(t, err)
	require.Equal(t, "`{header.X-Team}`", word)
	require.Equal(t, "a {$:{$}HOME} {$:{$}{$:{$}", Plain("a {$HOME} {${$"))
}

// Package caddyfile writes texts into a Caddyfile so that Caddy reads them as they are.
package caddyfile

import (
	"fmt"
	"strings"
)

// Literal returns a text as one word of a Caddyfile. Where Caddy replaces placeholders, the word stands for the text itself,
// whatever braces it has; so it does in the words of shape that name keys and routes. A text with a backtick that also
// has a brace or a backslash can't be written.
func Literal(text string) (string, error) {
	word, err := Word(strings.NewReplacer("{", `\{`, "}", `\}`).Replace(text))
	if err != nil {
		return "", fmt.Errorf("%q can't be written in a Caddyfile: it has a backtick, and a brace or a backslash", text)
	}
	return word, nil
}

// Word is Literal for a text whose placeholders are meant.
func Word(text string) (string, error) {
	switch {
	case text != "" && !strings.ContainsAny(text, " \t\r\n\"`{}#\\<"):
		return text, nil
	case !strings.Contains(text, "`"):
		return "`" + text + "`", nil
	case strings.Contains(text, `\`): // Between quotes it would escape one.
		return "", fmt.Errorf("%q can't be written in a Caddyfile: it has a backtick and a backslash", text)
	}
	return `"` + strings.ReplaceAll(text, `"`, `\"`) + `"`, nil
}

// Plain returns a whole Caddyfile in which nothing is read from the environment. Caddy replaces {$NAME} before it reads words,
// in quotes and comments too, and replaces nothing in the default of a variable. So "{$" is written as the default of one without
// a name, which is never set.
func Plain(file string) string { return strings.ReplaceAll(file, "{$", "{$:{$}") }

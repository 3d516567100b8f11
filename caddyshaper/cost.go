package caddyshaper

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
)

// A costFunc returns the cost of a request.
type costFunc func(*caddy.Replacer) int

// defaultMaxCost is the most that a request costs by placeholders, unless max_cost says
// otherwise: all requests behind it wait for its cost, and a client may have written it.
const defaultMaxCost = 1000

// newCost returns the function for a cost, as it is configured.
func newCost(text string, most int) (costFunc, error) {
	if most < 0 {
		return nil, fmt.Errorf("max_cost: %d, must be at least 1, or 0 for %d", most, defaultMaxCost)
	}
	if strings.Contains(text, "{") {
		if most == 0 {
			most = defaultMaxCost
		}
		return func(repl *caddy.Replacer) int {
			// What is no number gives 0, and what does not fit into an int the nearest int.
			n, _ := strconv.Atoi(strings.TrimSpace(repl.ReplaceAll(text, "")))
			return min(max(n, 1), most)
		}, nil
	}
	if most != 0 {
		return nil, fmt.Errorf("max_cost: %d, but the cost %q has no placeholder", most, text)
	}
	n := 1
	if text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 1 {
			return nil, fmt.Errorf("cost: %q, must be a number of at least 1, or a text with a {placeholder}", text)
		}
	}
	return func(*caddy.Replacer) int { return n }, nil
}

package find

import (
	"errors"
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"time"
)

// A Goal is what limits have to keep to.
type Goal struct {
	Wait    time.Duration // no request that is let through waits longer
	Refused *big.Rat      // at most this share of a rule's requests is refused
	Burst   int           // 0: that of each rule
}

// ParseGoal reads a goal such as "wait=200ms refused=0.1% burst=5". The wait must be there.
// Without refused, none may be.
func ParseGoal(text string) (Goal, error) {
	g := Goal{Refused: new(big.Rat)}
	seen := map[string]bool{}
	for _, field := range strings.Fields(text) {
		name, value, ok := strings.Cut(field, "=")
		if !ok {
			return Goal{}, fmt.Errorf(`%q: must be a name and a value, such as wait=200ms`, field)
		}
		if seen[name] {
			return Goal{}, fmt.Errorf("%q: %s is there twice", field, name)
		}
		seen[name] = true
		var err error
		switch name {
		case "wait":
			g.Wait, err = parseWait(value)
		case "refused":
			g.Refused, err = parseShare(value)
		case "burst":
			g.Burst, err = parseBurst(value)
		default:
			err = errors.New("the names are wait, refused and burst")
		}
		if err != nil {
			return Goal{}, fmt.Errorf("%q: %w", field, err)
		}
	}
	if !seen["wait"] {
		return Goal{}, errors.New("wait is missing: how long may a request wait that is let through? For example wait=200ms, or wait=0s if none may")
	}
	return g, nil
}

// longestWait is the longest wait that limits can name: more is the same.
const longestWait = 365 * 24 * time.Hour

func parseWait(value string) (time.Duration, error) {
	d, err := time.ParseDuration(value)
	switch {
	case err != nil && isNumber(value):
		return 0, fmt.Errorf("the unit is missing: write wait=%sms or wait=%ss", value, value)
	case err != nil:
		return 0, errors.New("must be a duration such as 200ms or 1.5s")
	case d < 0:
		return 0, errors.New("must not be negative")
	case d > longestWait:
		return 0, errors.New("must be at most 8760h, which is 365 days")
	}
	return d, nil
}

// parseShare reads a percentage, exactly.
func parseShare(value string) (*big.Rat, error) {
	number, percent := strings.CutSuffix(value, "%")
	switch {
	case !isNumber(number):
		return nil, errors.New("must be a percentage such as 0.1%")
	case !percent:
		return nil, fmt.Errorf("the unit is missing: write refused=%s%%", value)
	}
	share, _ := new(big.Rat).SetString(number)
	if share.Quo(share, big.NewRat(100, 1)).Cmp(big.NewRat(1, 1)) > 0 {
		return nil, errors.New("must be at most 100%")
	}
	return share, nil
}

func parseBurst(value string) (int, error) {
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 {
		return 0, errors.New("must be a whole number, at least 1")
	}
	return n, nil
}

// isNumber reports whether text is digits, maybe with a point between them.
func isNumber(text string) bool {
	const longest = 20 // more digits than anybody means, and exact arithmetic takes longer with more
	whole, decimals, point := strings.Cut(text, ".")
	digits := func(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
	return len(text) <= longest && digits(whole) && (!point || digits(decimals))
}

// allowed returns how many of so many requests may be refused.
func (g Goal) allowed(requests int) int {
	most := new(big.Int).Mul(g.Refused.Num(), big.NewInt(int64(requests)))
	return int(most.Quo(most, g.Refused.Denom()).Int64())
}

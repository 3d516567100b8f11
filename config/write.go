package config

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"example.com/leakybucket/shaper"
)

// MarshalText returns the rules as one file, in the order of their keys, which [Parse]
// reads as the same rules: several layers become one, and what was taken away is gone.
// Comments are lost. It is an error if the file would be larger than Parse accepts.
func (r *Rules) MarshalText() ([]byte, error) {
	var text bytes.Buffer
	rest := r.rules
	if len(rest) > 0 && rest[0].Key == "" {
		text.WriteString("default: " + rest[0].yaml() + "\n")
		rest = rest[1:]
	}
	switch {
	case len(rest) > 0:
		text.WriteString("limits:\n")
	case text.Len() == 0:
		text.WriteString("limits: {}\n") // An empty file would be a mistake.
	}
	for _, rule := range rest {
		// All of these keys are in quotes, because YAML reads some plain words, such as
		// null and <<, as something else. A key of more than 1024 characters needs the
		// question mark.
		const maxPlain = 1000
		if key := strconv.Quote(rule.Key); len(key) > maxPlain {
			text.WriteString("  ? " + key + "\n  : " + rule.yaml() + "\n")
		} else {
			text.WriteString("  " + key + ": " + rule.yaml() + "\n")
		}
	}
	if len(rest) > maxRules || text.Len() > maxBytes {
		return nil, fmt.Errorf("config: %d rules in %d bytes are too much for one file", len(r.rules), text.Len())
	}
	return text.Bytes(), nil
}

// yaml returns the right side of a rule, on one line.
func (r *Rule) yaml() string {
	if r.Candidate == nil {
		return r.Limits.String()
	}
	fields := append(fieldsOf(r.Limits), "candidate: "+r.Candidate.String())
	return "{" + strings.Join(fields, ", ") + "}"
}

// fieldsOf returns valid limits as the fields of a mapping. They are the words of the
// text form, which are a rate and then names with their values.
func fieldsOf(l shaper.Limits) (fields []string) {
	words := strings.Fields(l.String())
	rate := 1
	if words[1] == "per" {
		rate = 3
	}
	fields = append(fields, "rate: "+strings.Join(words[:rate], " "))
	for i := rate; i < len(words); i += 2 {
		fields = append(fields, words[i]+": "+words[i+1])
	}
	return fields
}

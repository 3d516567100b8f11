package report

import (
	"encoding/json"
	"io"
	"strings"
)

// WriteJSON writes a document as one JSON object.
func WriteJSON(w io.Writer, d *Document) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(d)
}

// Addresses returns a list of addresses for a firewall, with one address or prefix per
// line.
func Addresses(all []string) string {
	if len(all) == 0 {
		return ""
	}
	return strings.Join(all, "\n") + "\n"
}

package llm

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
)

// longestModel bounds the kept bytes of the name of a model, which a caller writes.
const longestModel = 256

// Model returns the model that a call names in its body, or in its path as Gemini, Bedrock and Azure have it; "" if it names none. Of
// a body that has not come yet the first 1 MiB is read, which stays readable.
func Model(r *http.Request) string {
	if s, _, err := scanned(r); err == nil && s != nil && len(s.ask.model) > 0 {
		var named string
		if json.Unmarshal(fmt.Appendf(nil, `"%s"`, s.ask.model), &named) != nil { // It has been cut.
			named = string(s.ask.model)
		}
		return named[:min(len(named), longestModel)]
	}
	name := modelInPath(r)
	return strings.Clone(name[:min(len(name), longestModel)]) // The rest would be kept with it.
}

func modelInPath(r *http.Request) string {
	if r.URL == nil {
		return ""
	}
	parts := strings.Split(r.URL.EscapedPath(), "/")
	for i, part := range parts[:len(parts)-1] {
		if part == "models" || part == "model" || part == "deployments" {
			name := parts[i+1]
			if r.Method == http.MethodPost {
				name = methodOfGoogle.ReplaceAllString(name, "")
			}
			if plain, err := url.PathUnescape(name); err == nil {
				return plain
			}
		}
	}
	return ""
}

// methodOfGoogle is the method behind the model in a path of Google's, such as :generateContent or :countTokens. Names of
// Bedrock's models have a number behind a colon.
var methodOfGoogle = regexp.MustCompile(`:[A-Za-z]+$`)

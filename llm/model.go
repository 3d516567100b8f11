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

// Model returns the model that a call names in its body, or in its path as Gemini, Bedrock and Azure have it; "" if it names none.
// Where the path says which model runs, a name in the body counts for nothing. Of a body that has not come yet the first 1 MiB is
// read, which stays readable.
func Model(r *http.Request) string {
	name, runs := modelInPath(r)
	if s, _, err := scanned(r); err == nil && !runs && s != nil && len(s.ask.model) > 0 {
		var named string
		if json.Unmarshal(fmt.Appendf(nil, `"%s"`, s.ask.model), &named) != nil { // It has been cut.
			named = string(s.ask.model)
		}
		return named[:min(len(named), longestModel)]
	}
	return strings.Clone(name[:min(len(name), longestModel)]) // The rest would be kept with it.
}

// modelInPath returns the model that a path names. runs reports whether that is the one that runs, whatever the body says: it has a
// method of Google's or Bedrock's, or is a deployment of Azure's. Gemini's embedContent has the model in its body, too, as
// models/… (ai.google.dev/api/embeddings, 2026), and so has a call of OpenAI's library to Azure.
func modelInPath(r *http.Request) (name string, runs bool) {
	if r.URL == nil {
		return "", false
	}
	parts := strings.Split(r.URL.EscapedPath(), "/")
	for i, part := range parts[:len(parts)-1] {
		if part == "models" || part == "model" || part == "deployments" {
			name := parts[i+1]
			if r.Method == http.MethodPost {
				name = methodOfGoogle.ReplaceAllString(name, "")
			}
			runs := part == "deployments" || name != parts[i+1] ||
				part == "model" && i+2 < len(parts) && methodOfBedrock.MatchString(parts[i+2])
			if plain, err := url.PathUnescape(name); err == nil {
				return plain, runs
			}
		}
	}
	return "", false
}

// methodOfBedrock is the method behind the model in a path of Bedrock's.
var methodOfBedrock = regexp.MustCompile(`^(invoke|converse)`)

// methodOfGoogle is the method behind the model in a path of Google's, such as :generateContent or :countTokens. Names of
// Bedrock's models have a number behind a colon.
var methodOfGoogle = regexp.MustCompile(`:[A-Za-z]+$`)

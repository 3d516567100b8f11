package promshaper_test

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/promshaper"
)

// doc.go lists each metric once with its labels.
func TestTheDocumentationHasTheMetricsThatThereAre(t *testing.T) {
	descs := make(chan *prometheus.Desc, 100)
	promshaper.New().Describe(descs)
	close(descs)
	description := regexp.MustCompile(`fqName: "(\w+)".*variableLabels: \{rule,?(\w*)\}`)
	var metrics, names []string
	for desc := range descs {
		found := description.FindStringSubmatch(desc.String())
		require.NotNil(t, found, desc.String())
		labels := ""
		if found[2] != "" {
			labels = "{" + found[2] + "}"
		}
		metrics, names = append(metrics, found[1]+labels), append(names, found[1])
	}
	require.Len(t, slices.Compact(slices.Sorted(slices.Values(names))), len(names), "a name is used twice")

	text, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	var listed []string
	for _, m := range regexp.MustCompile(`(?m)^//\t(shaper_\S+)`).FindAllStringSubmatch(string(text), -1) {
		listed = append(listed, m[1])
	}
	require.ElementsMatch(t, metrics, listed)
}

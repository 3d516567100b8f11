package main_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheVersionSaysWhatThisIs(t *testing.T) {
	for _, args := range [][]string{{"version"}, {"--version"}} {
		status, text := do(t, args...)
		require.Zero(t, status)
		// The second is what Go makes of a checkout, unless GOFLAGS say -buildvcs=false.
		require.Regexp(t, `^shaperd (\(devel\).*|v\d+\.\d+\.\d+\S*), Caddy v2\.\d+\.\d+ `, text)
	}
	status, text := do(t, "help")
	require.Zero(t, status)
	require.Contains(t, text, "leaky-bucket traffic shaper")
	require.Contains(t, text, "shaperd [command]")
}

// Caddy's validate provisions a configuration and starts none of it.
func TestValidateTouchesNoServer(t *testing.T) {
	file := writeFile(t, "Caddyfile", "http://"+freeAddress(t)+" {\n\tshape {\n\t\tlimits 5/s\n\t}\n}\n")
	status, text := do(t, "validate", "--config", file)
	require.Zero(t, status, text)
	require.Contains(t, text, "Valid configuration")
}

// Whoever asks whether the server is ready says no password, and whoever looks at the line does not wait in it.
func TestDirectivesHaveTheirOrder(t *testing.T) {
	file := writeFile(t, "Caddyfile", "http://:8480 {\n\tshape shop {\n\t\tlimits 5/s\n\t}\n\tshape_inspect /shaper/* {\n\t\thosts a b\n\t}\n\tbasic_auth /shaper/* {\n\t\tAnn $2a$14$Zkx19XLiW6VYouLHR5NmfOFU0z2GTNmpkT/5qqR7hx4IjWJPDhjvG\n\t}\n\tshape_ready /ready\n\treverse_proxy 127.0.0.1:1\n}\n")
	status, text := do(t, "adapt", "--config", file)
	require.Zero(t, status, text)
	require.Regexp(t, `"handler":"shape_ready".*"handler":"authentication".*"handler":"shape_inspect".*"handler":"shape".*"handler":"reverse_proxy"`, text)
}

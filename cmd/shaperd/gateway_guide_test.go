package main_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/servers"
)

// Each command of the page for operators of the gateway is read, and says as a Caddyfile what it would serve. The options that the page names
// are there.
func TestTheCommandsOfTheGatewaysGuideAreRead(t *testing.T) {
	text, err := os.ReadFile("../../docs/gateway.md")
	require.NoError(t, err)
	commands := regexp.MustCompile(`(?m)^shaperd (llm .*)$`).FindAllStringSubmatch(string(text), -1)
	require.Greater(t, len(commands), 5)
	for _, c := range commands {
		args := strings.Fields(c[1])
		if strings.Contains(c[1], "--demo") {
			continue // It serves at once: see TestTheDemonstrationOfTheGatewayShowsTeamsThatTakeTurns.
		}
		printed, err := servers.Shaperd(t, program, append(args, "--print")...).Output() // It may go into a file.
		require.NoError(t, err, c[1])
		require.Contains(t, string(printed), "quota "+args[2], c[1])
	}

	status, help := do(t, "help", "llm")
	require.Zero(t, status)
	for _, option := range regexp.MustCompile("`(--[a-z-]+)").FindAllStringSubmatch(string(text), -1) {
		require.Contains(t, help, option[1]+" ", "docs/gateway.md")
	}
}

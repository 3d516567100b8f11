package main

import (
	"encoding/xml"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// In virtual time the scene has the result that it is meant to show, and its picture is
// well-formed.
func TestTokensAreSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limitsOf(t, tokensLimits)
		start := time.Now()
		direct, unsettled, settled, err := callForTokens(t.Context(), l)
		require.NoError(t, err)
		require.Equal(t, tokensSpan/tokensSpeed, time.Since(start))
		require.Empty(t, judgeTokens(direct, unsettled, settled))
		require.InDelta(t, 48, unsettled.perMinute(), 4)
		require.Greater(t, settled.perMinute(), 115.0)
		require.Greater(t, direct.refused, 100)

		picture := tokensSVG(l, unsettled, settled)
		d := xml.NewDecoder(strings.NewReader(picture))
		for err == nil {
			_, err = d.Token()
		}
		require.Equal(t, io.EOF, err)
		require.NotContains(t, picture, "NaN")
		require.Contains(t, tokensTable(newTerminal(io.Discard, nil), direct, unsettled, settled), "refused by the API")
	})
}

func TestJudgeTokens(t *testing.T) {
	for says, spoil := range map[string]func(direct, unsettled, settled *tokenRun){
		"":                              func(_, _, _ *tokenRun) {},
		"nothing to show":               func(direct, _, _ *tokenRun) { direct.refused = 0 },
		"1 call was refused by the API": func(_, unsettled, _ *tokenRun) { unsettled.refused = 1 },
		"79 calls were served":          func(_, _, settled *tokenRun) { settled.served = 79 },
	} {
		direct, unsettled, settled := tokenRun{refused: 9}, tokenRun{served: 40}, tokenRun{served: 80}
		spoil(&direct, &unsettled, &settled)
		faults := judgeTokens(direct, unsettled, settled)
		if says == "" {
			require.Empty(t, faults)
			continue
		}
		require.Len(t, faults, 1)
		require.Contains(t, faults[0], says)
	}
}

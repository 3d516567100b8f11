package inspect_test

import (
	"bufio"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/inspect"
	"example.com/leakybucket/shaper"
)

func TestAReaderIsGreetedAndToldGoodBye(t *testing.T) {
	s, err := shaper.New(shaper.Limits{Rate: 10})
	require.NoError(t, err)
	require.True(t, s.Allow())
	i := inspect.New()
	i.Add("one", inspect.Of(s))
	url := serve(t, i)
	r, err := http.Get(url + "/api/events?source=one")
	require.NoError(t, err)
	defer r.Body.Close()
	require.Equal(t, "text/event-stream", r.Header.Get("Content-Type"))
	var names []string
	lines := bufio.NewScanner(r.Body)
	for lines.Scan() {
		name, ok := strings.CutPrefix(lines.Text(), "event: ")
		if !ok {
			continue
		}
		names = append(names, name)
		if len(names) == 4 {
			go i.Close()
		}
	}
	require.Equal(t, []string{"hello", "history", "detail", "frame"}, names[:4])
	require.Equal(t, "bye", names[len(names)-1])
}

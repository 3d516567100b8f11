package shaper_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// Clients wait in a line, every other one with an upload that nobody has read,
// and half of them vanish in every way. Then the line gets moving, before the
// uploads have been asked for their clients: it is the slots that find out.
func TestNoSlotIsSpentOnTheVanished(t *testing.T) {
	withHook(t)
	clients := 1000
	if testing.Short() {
		clients = 400
	}
	e := newEntrance(t, clients)
	e.handler = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }
	e.open()
	var vanish []*visitor
	stays := 0
	for i := range clients {
		upload := i%2 == 0
		switch vanishes := i/2%2 == 0; {
		case vanishes && upload:
			vanish = append(vanish, e.visit(post("/vanishes", "hello"[:i/4%6])))
		case vanishes:
			vanish = append(vanish, e.visit(get("/vanishes")))
		case upload:
			e.visit(post("/stays", "hello"))
			stays++
		default:
			e.visit(get("/stays"))
			stays++
		}
	}
	e.waiting(clients)
	for i, v := range vanish {
		[]func(*visitor){(*visitor).leave, (*visitor).reset, (*visitor).closeHalf}[i%3](v)
	}
	e.admit(fmt.Sprintf("1000/s depth %d", clients))
	ended := map[string]int{}
	for range clients {
		ended[e.ended()]++
	}
	require.LessOrEqual(t, ended["/vanishes 204"], 1)
	require.Equal(t, stays, ended["/stays 204"])
	require.InDelta(t, stays+1, e.Stats().Departed, 1, "the first slot of all is not theirs")
	require.InDelta(t, len(vanish), e.Stats().Abandoned, 1)
}

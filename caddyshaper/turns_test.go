package caddyshaper_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

const inspected = "shape_inspect /shaper* {\n hosts shop.example\n}\n"

// The page shows whose turn it is, and a reload that changes weights goes on with it.
func TestThePageShowsWhoseTurnItIs(t *testing.T) {
	s := serve(t, inspected+fairShape("1/h", "weight gold 4"))
	require.Equal(t, 200, s.get("/0").status)
	leave := s.inLineWith([]string{"X-Team", "gold"}, "line", "/g1", "/g2")
	s.reload(inspected + fairShape("1/h", "weight silver 2"))
	leaveToo := s.inLineWith([]string{"X-Team", "silver"}, "line", "/s1")
	var turns struct {
		Keys, Waiting int
		Rows          []struct {
			Key             string
			Weight, Waiting int
		}
	}
	a := s.get("/shaper/api/keys/line/")
	require.Equal(t, http.StatusOK, a.status, a.body)
	require.NoError(t, json.Unmarshal([]byte(a.body), &turns))
	require.Equal(t, 2, turns.Keys)
	require.Equal(t, 3, turns.Waiting)
	require.Equal(t, "gold", turns.Rows[0].Key)
	require.Equal(t, 4, turns.Rows[0].Weight, "that of before the reload, until its line is empty")
	require.Equal(t, "silver", turns.Rows[1].Key)
	require.Equal(t, 2, turns.Rows[1].Weight)
	s.reload(inspected + fairShape("1000/s", ""))
	for _, a := range append(leave(), leaveToo()...) {
		require.Equal(t, 200, a.status)
	}
}

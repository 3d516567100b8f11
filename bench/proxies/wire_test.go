package proxies

import (
	"bufio"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadHead(t *testing.T) {
	r := bufio.NewReader(strings.NewReader("HTTP/1.1 429 Too Many Requests\r\nServer: x\r\ncontent-length:  3\r\n\r\nok\nGET / HTTP/1.1\r\n\r\n"))
	h, err := readHead(r)
	require.NoError(t, err)
	require.Equal(t, head{first: "HTTP/1.1 429 Too Many Requests", length: 3}, h)
	status, err := h.status()
	require.NoError(t, err)
	require.Equal(t, 429, status)
	_, err = r.Discard(h.length)
	require.NoError(t, err)
	h, err = readHead(r)
	require.NoError(t, err)
	require.Equal(t, head{first: "GET / HTTP/1.1"}, h)
	_, err = h.status()
	require.Error(t, err)

	for _, text := range []string{
		"",
		"HTTP/1.1 200 OK\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: three\r\n\r\n",
	} {
		_, err := readHead(bufio.NewReader(strings.NewReader(text)))
		require.Error(t, err, text)
	}
}

func TestNumberOfARequest(t *testing.T) {
	for first, want := range map[string]int{"GET /17 HTTP/1.1": 17, "GET / HTTP/1.1": 0} {
		number, err := numberOf(first)
		require.NoError(t, err)
		require.Equal(t, want, number)
	}
	for _, first := range []string{"", "GET", "GET 17 HTTP/1.1", "GET /x HTTP/1.1"} {
		_, err := numberOf(first)
		require.Error(t, err, first)
	}
}

func TestUpstreamNotesNumberedRequests(t *testing.T) {
	u, err := startUpstream(0, false)
	require.NoError(t, err)
	defer u.close()
	callers, err := openCallers(t.Context(), u.address, 1)
	require.NoError(t, err)
	defer callers.close()
	for _, path := range []string{"/2", "/", "/1"} {
		require.NoError(t, callers.all[0].send(path))
		status, err := callers.all[0].receive()
		require.NoError(t, err)
		require.Equal(t, 200, status)
	}
	arrivals, err := u.take()
	require.NoError(t, err)
	require.Len(t, arrivals, 2)
	require.Equal(t, 2, arrivals[0].number)
	require.Equal(t, 1, arrivals[1].number)
	require.LessOrEqual(t, arrivals[0].at, arrivals[1].at)
	arrivals, err = u.take()
	require.NoError(t, err)
	require.Empty(t, arrivals, "they are taken once")

	require.NoError(t, callers.all[0].send("/nonsense"))
	_, err = callers.all[0].receive()
	require.Error(t, err)
	_, err = u.take()
	require.Error(t, err)
}

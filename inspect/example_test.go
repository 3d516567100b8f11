package inspect_test

import (
	"fmt"
	"io"
	"net"
	"net/http"

	"example.com/leakybucket/inspect"
	"example.com/leakybucket/shaper"
)

func Example() {
	upstream, err := shaper.New(shaper.Limits{Rate: 50, Depth: 100})
	if err != nil {
		panic(err)
	}
	defer upstream.Close()
	clients, err := shaper.NewGroup(func(string) (shaper.Limits, error) {
		return shaper.Limits{Rate: 10, Depth: 10}, nil
	})
	if err != nil {
		panic(err)
	}
	defer clients.Close()

	i := inspect.New()
	defer i.Close()
	i.Add("upstream", inspect.Of(upstream))
	i.Add("clients", inspect.OfGroup(clients))
	l, err := net.Listen("tcp", "127.0.0.1:0") // such as 127.0.0.1:6060
	if err != nil {
		panic(err)
	}
	server := &http.Server{Handler: i}
	defer server.Close()
	go server.Serve(l)

	answer, err := http.Get("http://" + l.Addr().String() + "/api/top")
	if err != nil {
		panic(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		panic(err)
	}
	fmt.Print(string(text))
	// Output: {"top":[]}
}

package shaper_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"example.com/leakybucket/shaper"
)

// A server with requests that wait in front of it, and its way out.
func ExampleConnContext() {
	s, err := shaper.New(shaper.Limits{Rate: 50, Depth: 100})
	if err != nil {
		panic(err)
	}
	site := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "Hello.") })

	server := &http.Server{
		Handler:           shaper.Middleware(s)(site),
		ConnContext:       shaper.ConnContext,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      30 * time.Second,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 128, MaxReceiveBufferPerStream: 64 << 10, MaxReceiveBufferPerConnection: 8 << 20,
		},
	}
	shutdown := func(ctx context.Context) error {
		return errors.Join(server.Shutdown(ctx), s.Close()) // In this order.
	}

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	served := make(chan error)
	go func() { served <- server.Serve(l) }()
	answer, err := http.Get("http://" + l.Addr().String())
	if err != nil {
		panic(err)
	}
	_ = answer.Body.Close()
	fmt.Println(answer.Status)
	fmt.Println(shutdown(context.Background()), <-served)
	// Output:
	// 200 OK
	// <nil> http: Server closed
}

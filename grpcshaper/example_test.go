package grpcshaper_test

import (
	"context"
	"fmt"
	"log"
	"net"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"example.com/leakybucket/grpcshaper"
	"example.com/leakybucket/shaper"
)

// Each client has a bucket of its own, and all of them share the bucket of the site. Health
// checks pass. One call a day is so little that the second is refused here.
func Example() {
	clients, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return shaper.ParseLimits("1/day") })
	if err != nil {
		log.Fatal(err)
	}
	defer clients.Close()
	site, err := shaper.New(shaper.Limits{Rate: 200, Burst: 20, Depth: 500})
	if err != nil {
		log.Fatal(err)
	}
	defer site.Close()

	limiter := shaper.Chain(grpcshaper.PerKey(clients, grpcshaper.ByPeer()), site)
	skip := grpcshaper.WithSkip(grpcshaper.HealthChecks)
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(grpcshaper.UnaryServerInterceptor(limiter, skip)),
		grpc.ChainStreamInterceptor(grpcshaper.StreamServerInterceptor(limiter, skip)),
	)
	testgrpc.RegisterTestServiceServer(server, service{})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }() // It ends with Stop.
	defer server.Stop()

	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	client := testgrpc.NewTestServiceClient(conn)
	for range 2 {
		_, err := client.UnaryCall(context.Background(), &testgrpc.SimpleRequest{})
		if err == nil {
			fmt.Println("served")
			continue
		}
		st := status.Convert(err)
		fmt.Println(st.Code(), st.Message())
		for _, detail := range st.Details() {
			if info, ok := detail.(*errdetails.RetryInfo); ok {
				fmt.Println("retry after more than 23 h:", info.GetRetryDelay().AsDuration().Hours() > 23)
			}
		}
	}
	// Output:
	// served
	// ResourceExhausted more calls have come than the limit allows
	// retry after more than 23 h: true
}

// A client sends at most 50 calls a second, and 10 may be in flight. When the server
// refuses one of them and says when to come back, all of them wait for that time.
func ExampleUnaryClientInterceptor() {
	upstream, err := shaper.New(shaper.Limits{Rate: 50, Depth: 1000, InFlight: 10})
	if err != nil {
		log.Fatal(err)
	}
	defer upstream.Close()
	conn, err := grpc.NewClient("dns:///orders.example:443",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(grpcshaper.UnaryClientInterceptor(upstream)),
		grpc.WithChainStreamInterceptor(grpcshaper.StreamClientInterceptor(upstream)),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
}

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// findRedis returns the path of redis-server, or of Valkey's.
func findRedis() (string, error) {
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", &usageError{errors.New("redis-server is not installed: apt-get install redis-server, or use -redis HOST:PORT for a server that runs")}
}

// startRedis starts a server on a free port, in a temporary folder, and returns its address
// and what stops it.
func startRedis(ctx context.Context) (address string, stop func(), err error) {
	path, err := findRedis()
	if err != nil {
		return "", nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	address = listener.Addr().String()
	port := listener.Addr().(*net.TCPAddr).Port
	_ = listener.Close()
	folder, err := os.MkdirTemp("", "shared-redis-")
	if err != nil {
		return "", nil, err
	}
	var output bytes.Buffer
	server := exec.Command(path, "--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", folder, "--save", "", "--appendonly", "no")
	server.Stdout, server.Stderr = &output, &output
	if err := server.Start(); err != nil {
		_ = os.RemoveAll(folder)
		return "", nil, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Wait()
	}()
	stop = func() {
		_ = server.Process.Kill() // There is nothing to save.
		<-ended
		_ = os.RemoveAll(folder)
	}
	for began := time.Now(); ; {
		err := ping(ctx, address)
		switch {
		case err == nil:
			return address, stop, nil
		case ctx.Err() != nil || time.Since(began) > 20*time.Second:
			stop()
			return "", nil, fmt.Errorf("%s is not ready: %w", path, err)
		}
		select {
		case <-ended:
			stop()
			return "", nil, fmt.Errorf("%s has ended: %s", path, bytes.TrimSpace(output.Bytes()))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// ping returns an error if no server of Redis answers at the address.
func ping(ctx context.Context, address string) error {
	client := redis.NewClient(&redis.Options{Addr: address, MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true})
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	return client.Ping(ctx).Err()
}

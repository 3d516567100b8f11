package redisbucket

import (
	"context"
	"crypto/sha1"
	_ "embed" // for the scripts
	"encoding/hex"

	"github.com/redis/go-redis/v9"
)

//go:embed take.lua
var takeText string

//go:embed giveback.lua
var giveBackText string

var takeScript, giveBackScript = newScript(takeText), newScript(giveBackText)

// A script is a text that servers keep under its hash.
type script struct{ text, hash string }

func newScript(text string) script {
	sum := sha1.Sum([]byte(text))
	return script{text, hex.EncodeToString(sum[:])}
}

// A command is one that the client must never repeat: if the answer is lost it may have been
// carried out, and its units would be taken twice. go-redis repeats commands by default,
// three times; it asks each command whether it may be repeated. Redirections in a cluster
// (MOVED, ASK) are followed all the same, as a server that redirects has done nothing.
type command struct{ *redis.Cmd }

func newCommand(ctx context.Context, args []any) command {
	return command{redis.NewCmd(ctx, args...)}
}

// NoRetry reports true: the client must not repeat the command.
func (command) NoRetry() bool { return true }

// Clone returns a copy, which must not be repeated either.
func (c command) Clone() redis.Cmder { return command{c.Cmd.Clone().(*redis.Cmd)} }

// run runs a script on one key and returns its answer. The text of the script is sent if the server
// does not have it: then it has done nothing.
func (b *Bucket) run(ctx context.Context, s script, key string, args []any) (any, error) {
	if err := b.reach(ctx, key); err != nil {
		return nil, err
	}
	call := make([]any, 0, 4+len(args))
	call = append(append(call, "evalsha", s.hash, 1, b.prefix+key), args...)
	answer, err := b.do(ctx, newCommand(ctx, call))
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		call[0], call[1] = "eval", s.text
		answer, err = b.do(ctx, newCommand(ctx, call))
	}
	return answer, err
}

// do sends a command and returns the answer, or an error when ctx has ended.
func (b *Bucket) do(ctx context.Context, c command) (any, error) {
	if b.obeys {
		err := b.client.Process(ctx, c)
		return c.Val(), err
	}
	// By default a client of go-redis waits for an answer until its ReadTimeout, however short
	// the context is. Then nothing waits for its result.
	done := make(chan error, 1)
	go func() { done <- b.client.Process(ctx, c) }()
	select {
	case err := <-done:
		return c.Val(), err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

package redisbucket

import (
	"context"
	"crypto/sha1"
	_ "embed" // for the scripts
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/leakybucket/shaper/shared"
)

// A Bucket is a [shared.Bucket], a [shared.Seater] and a [shared.Keeper] on a server of Redis or Valkey, on one that sentinels
// watch, or on a cluster. [New] makes one; [NewRing] spreads keys over several servers that
// do not know of each other. A Bucket is safe for concurrent use.
//
// Its errors are the errors of the server and the client, as they are or wrapped, and none
// is hidden: a replica that refuses to write and a cluster that is down count as failures
// too.
type Bucket struct {
	client  redis.UniversalClient
	cluster *redis.ClusterClient // client, if it is one of a cluster
	obeys   bool                 // calls of client return when their contexts end
	prefix  string
	dials   dials
	invalid error // why no call can succeed
}

var _ shared.Bucket = (*Bucket)(nil)

// New returns a [Bucket] on the servers of a client: a [redis.Client], one that
// [redis.NewFailoverClient] has made for servers with sentinels, or a
// [redis.ClusterClient]. The Bucket does not close it, and adds nothing to it but a hook that
// notes why it can't connect, so it may serve other purposes too.
//
// No call is repeated, whatever the client's MaxRetries. Where ContextTimeoutEnabled is
// false, which is the default, a call that gets no answer returns when its context ends,
// but keeps its connection until ReadTimeout; so better set it.
//
// A [redis.Ring] is no such client: while a server is down it asks another for the same
// keys, so that two processes may use two levels. With it each call is an error.
func New(client redis.UniversalClient, opts ...Option) *Bucket {
	b := &Bucket{client: client, prefix: "shaper:"}
	for _, o := range opts {
		if o != nil {
			o(b)
		}
	}
	switch c := client.(type) {
	case nil:
		b.invalid = errors.New("redisbucket: the client is nil")
	case *redis.Client:
		b.obeys = c.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		b.cluster, b.obeys = c, c.Options().ContextTimeoutEnabled
	case *redis.Ring:
		b.invalid = errors.New("redisbucket: the client is a redis.Ring, which asks another server for a key while its own is down; use NewRing")
	}
	if b.invalid == nil {
		b.dials.watch(client)
	}
	return b
}

// Take implements [shared.Bucket].
func (b *Bucket) Take(ctx context.Context, t shared.Take) (shared.Taken, error) {
	if err := b.check(t); err != nil {
		return shared.Taken{}, err
	}
	rise, room := t.Rise(), t.Room()
	name := b.prefix + t.Key
	answer, err := b.run(ctx, takeScript, name, []any{
		t.Rate.Version, numbersText(t.Rate), t.Rate.Parts, rise.Micros, rise.Part, room.Micros, room.Part,
		t.Ahead.Microseconds(), t.Guard.Microseconds(), t.High.Micros, t.High.Part, t.Seen, t.Hold,
	})
	if err := b.failed(ctx, name, err); err != nil {
		return shared.Taken{}, err
	}
	text, _ := answer.(string)
	taken, ok := parseTaken(text)
	if !ok {
		return shared.Taken{}, fmt.Errorf("redisbucket: the answer of the script is %v", answer)
	}
	return taken, nil
}

// GiveBack implements [shared.Bucket].
func (b *Bucket) GiveBack(ctx context.Context, t shared.Take, end shared.Instant) error {
	if err := b.check(t); err != nil {
		return err
	}
	rise, name := t.Rise(), b.prefix+t.Key
	_, err := b.run(ctx, giveBackScript, name, []any{
		numbersText(t.Rate), t.Rate.Parts, rise.Micros, rise.Part, end.Micros, end.Part,
	})
	return b.failed(ctx, name, err)
}

// failed returns the error of a call for a name on the server, as callers see it.
func (b *Bucket) failed(ctx context.Context, name string, err error) error {
	if err == nil {
		return nil
	}
	deadline, ok := ctx.Deadline()
	switch {
	case ctx.Err() != nil:
		err = b.ranOut(name, ctx.Err())
	case ok && !time.Now().Before(deadline):
		err = b.ranOut(name, context.DeadlineExceeded) // A connection notices it a bit sooner than the context.
	default:
		err = fmt.Errorf("redisbucket: %w", err)
	}
	if b.cluster != nil {
		// Another server may have taken over the key's slot. The client would find that
		// out up to ten seconds later. It asks in the background, at most five times a
		// second, and does not use the context.
		b.cluster.ReloadState(ctx)
	}
	return err
}

// check returns why a Take can't be asked for. Those of package shaper all can.
func (b *Bucket) check(t shared.Take) error {
	r := t.Rate
	switch {
	case b.invalid != nil:
		return b.invalid
	case t.Key == "":
		return errors.New("redisbucket: the key is empty")
	case t.Cost < 1:
		return fmt.Errorf("redisbucket: the cost is %d, must be at least 1", t.Cost)
	case r.Parts < 1 || r.Parts > 1e12 || r.Part < 0 || r.Part >= r.Parts || r.Micros < 0 || r.Micros > 1<<51 ||
		r.Micros+r.Part == 0 || r.Burst < 1 || r.Version < 0 || r.Version > 1<<53:
		return fmt.Errorf("redisbucket: the rate %+v is none", r)
	}
	return nil
}

// numbersText returns a rate without its version, as it is stored. The room that a request of cost
// 1 finds is part of it, because a script could not multiply so exactly.
func numbersText(r shared.BucketRate) string {
	room := shared.Take{First: 1, Rate: r}.Room()
	text := make([]byte, 0, 64)
	for _, n := range [...]int64{r.Micros, r.Part, r.Parts, r.Burst, room.Micros, room.Part} {
		text = append(strconv.AppendInt(text, n, 10), ' ')
	}
	return string(text[:len(text)-1])
}

// parseTaken parses the text of a script's answer: "ok cold now micros part", followed by the rate
// in force if it is another, and by "@micros", the end of the hold, if there is one.
func parseTaken(text string) (shared.Taken, bool) {
	var numbers [12]int64
	count := 0
	text, hold, held := strings.Cut(text, " @")
	for word := range strings.SplitSeq(text, " ") {
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil || count == len(numbers) {
			return shared.Taken{}, false
		}
		numbers[count] = n
		count++
	}
	t := shared.Taken{
		OK: numbers[0] == 1, Cold: numbers[1] == 1, Now: numbers[2],
		Empty: shared.Instant{Micros: numbers[3], Part: numbers[4]},
	}
	if count == len(numbers) {
		r := numbers[5:]
		t.Other = &shared.BucketRate{Version: r[0], Micros: r[1], Part: r[2], Parts: r[3], Burst: r[4]}
	}
	if held {
		var err error
		if t.Hold, err = strconv.ParseInt(hold, 10, 64); err != nil {
			return shared.Taken{}, false
		}
	}
	return t, count == 5 || count == len(numbers)
}

// An Option changes a [Bucket] or a [Ring].
type Option func(*Bucket)

// WithPrefix sets the beginning of each key in Redis; the default is "shaper:". It must be the same
// in all processes that share buckets. If it is "", a key that begins with "seats:" or "keeper:" may be taken for
// what another key has beside its level.
func WithPrefix(prefix string) Option { return func(b *Bucket) { b.prefix = prefix } }

// Shard says which keys fail together, with their seats and keepers: in a cluster the keys of one hash slot, elsewhere
// all of them. Slots move from server to server, so a server would not do: a key could
// count as unavailable because of the server that once had it.
func (b *Bucket) Shard(key string) string {
	if b.cluster == nil {
		return ""
	}
	return "slot " + strconv.Itoa(slot(b.prefix+key))
}

// slot returns the hash slot of a key as the specification of Redis Cluster has it: if the
// key has a text in braces, only the first such text counts.
func slot(key string) int {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			key = tag
		}
	}
	var crc uint16 // CRC-16/XMODEM
	for _, c := range []byte(key) {
		crc ^= uint16(c) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc % 16384)
}

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

// run runs a script on one name and returns its answer. The text of the script is sent if the server
// does not have it: then it has done nothing.
func (b *Bucket) run(ctx context.Context, s script, name string, args []any) (any, error) {
	if err := b.reach(ctx, name); err != nil {
		return nil, err
	}
	call := make([]any, 0, 4+len(args))
	call = append(append(call, "evalsha", s.hash, 1, name), args...)
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

// Package redisbucket keeps the levels of shared buckets in Redis or Valkey:
//
//	bucket := redisbucket.New(client) // a redis.UniversalClient: one server, sentinels, a cluster
//	s, err := shaper.New(limits, shaper.WithBucket(bucket, "payments-api", shared.Options{}))
//
// [New] is for one place that has all keys, [NewRing] for several servers that do not know
// of each other.
//
// Each step is one script and one round trip. It is carried out at once or not at all, on
// the server's clock; the clocks of the processes do not count. Numbers are exact: the script
// answers the same as [shared.Take.Apply], to the last part of a microsecond, except after a change
// of the rate, where the level may reach 0 up to 2 µs later.
//
// # The stored state
//
// For each key there is one string of up to 200 bytes, whose name is the key after a
// prefix ([WithPrefix]). It expires a minute after its level has reached 0. A value that is
// not such a string counts as none and is replaced.
//
// In a cluster, a part of the key in braces decides the hash slot as usual.
//
// # Seats and keepers
//
// A [Bucket] and a [Ring] are a [shared.Seater] and a [shared.Keeper] too, each by one script that answers the same as
// [shared.Seating.Apply] and [shared.Keeping.Apply]. For each key that has them there is a hash beside the level, whose name
// begins with "seats:" or "keeper:" in place of the prefix, which follows: so no key of a client's can be one. It expires a day
// after it was written. The hash of seats takes some 130 bytes, and 80 for each process. In a cluster it is in the slot
// of the level.
//
// After a restart or a fail-over (another run_id of INFO) the state may be an older one, in which seats are free that are in use.
// So new ones are given only after [shared.SeatGuard], as after a loss, and whoever has some keeps them. Where INFO is forbidden,
// only a process that knows better finds an older state. A keeper is not guarded
// in that way: two may keep a key for the rest of a lease if the server forgets the younger one. An append-only file
// (appendonly yes) keeps it through a crash of the server.
//
// # The server
//
// The package is tested with Redis 7.0, and uses nothing newer than 5. The same tests run on
// Valkey where it is installed; Debian 12 has none. These settings matter:
//
//   - maxmemory-policy should be noeviction: a key that is evicted is a level that is lost, or seats, or a keeper.
//   - With Burst 1 persistence is not needed. A level lasts Burst/Rate: if that is longer than
//     a restart takes, as for logins, keep it (appendonly yes). A file that the disk has each
//     second (appendfsync everysec, the default) will do.
//   - Replication is asynchronous. After a fail-over the level may be an old one. Processes then
//     put it right by their own knowledge (High of [shared.Take]).
//   - The clock of the server should be slewed by NTP rather than stepped.
//
// A user of an access control list needs:
//
//	+evalsha +eval +get +set +setrange +time ~shaper:*
//
// for seats and keepers also
//
//	+hgetall +hmget +hset +hsetnx +hdel +del +pexpire +info ~seats:* ~keeper:*
//
// and the commands that go-redis itself uses: +hello, from Redis 7.2 on +client|setinfo (unless the
// client's DisableIdentity is set), and in a cluster +cluster|slots +command.
//
// # Servers that are far away
//
// A call may be too short to make a connection, above all with TLS, and go-redis cuts the greeting
// of a connection with the context of the call for which it is made. So until a call has been
// answered, and again when one has run out of time, the connection is made outside of calls, which
// wait for it until their context ends. Why a server can't be dialed is told by the error of a call
// that has ended meanwhile: [New] adds a hook to the client that notes it, and changes nothing.
//
// # When an answer is lost
//
// A script whose answer does not come may have been carried out, so it must not be sent again: its
// units would be taken twice, and a question for seats would overtake a later one. go-redis repeats commands up to three times by default, after a
// timeout and after a connection that is cut. The commands of this package forbid that by
// themselves; nothing in the client's options can allow it, and MaxRetries need not be changed for
// their sake. Redirections in a cluster (MOVED, ASK) are followed, up to MaxRedirects, and dialing
// is repeated up to DialerRetries, as long as the context lasts: in both cases nothing has been
// carried out yet. A hook of the client that calls next twice does repeat commands, and must not be
// used.
package redisbucket

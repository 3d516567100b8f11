package redisbucket_test

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/redisbucket"
	"example.com/leakybucket/shaper/shared"
)

// What the documentation says a user needs must suffice, also for what few calls need.
func TestAUserWithTheDocumentedRightsCanUseABucket(t *testing.T) {
	onEach(t, aUserWithTheDocumentedRightsCanUseABucket)
}

func aUserWithTheDocumentedRightsCanUseABucket(t *testing.T, server *servers.Redis) {
	ctx := within(t)
	server.MustDo("ACL", "SETUSER", "limited", "on", ">secret", "resetkeys", "-@all",
		"+evalsha", "+eval", "+get", "+set", "+setrange", "+time", "~shaper:*",
		"+hello")
	client := redis.NewClient(&redis.Options{Addr: server.Addr, Username: "limited", Password: "secret", DisableIdentity: true, ReadTimeout: patience})
	defer func() { require.NoError(t, client.Close()) }()
	bucket := redisbucket.New(client)
	answer, err := bucket.Take(ctx, one("key"))
	require.NoError(t, err)
	require.True(t, answer.OK)
	require.False(t, taken(t, bucket, "key"))
	require.NoError(t, bucket.GiveBack(ctx, one("key"), addMicros(answer.Empty, hour.Micros)))
	require.True(t, taken(t, bucket, "key"))
	guarded := one("guarded")
	guarded.Guard = 1e9
	answer, err = bucket.Take(ctx, guarded)
	require.NoError(t, err)
	require.Equal(t, shared.Instant{Micros: answer.Now + 1e6}, answer.Empty)
	require.Empty(t, server.MustDo("ACL", "LOG"), "nothing was denied")

	_, err = redisbucket.New(client, redisbucket.WithPrefix("other:")).Take(ctx, one("key"))
	require.ErrorContains(t, err, "NOPERM")
}

package servers_test

import (
	"bufio"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/internal/servers"
)

func TestAServerOfPostgresEndsAndComesBackAtItsAddress(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t, "-c", "max_connections=20")
	query := func(sql string) string {
		answer, err := p.Query(sql)
		require.NoError(t, err)
		return answer
	}
	require.Equal(t, "20", query("SHOW max_connections"))
	query("CREATE TABLE kept (a int, b text); INSERT INTO kept VALUES (1, 'x')")
	query("CREATE UNLOGGED TABLE lost (a int); INSERT INTO lost VALUES (1)")

	p.Stop(servers.PostgresFast)
	_, err := p.Query("SELECT 1")
	require.ErrorContains(t, err, "refused", "it has ended")
	p.Start()
	require.Equal(t, "1", query("SELECT * FROM lost"), "it ended in good order")

	p.Stop(servers.PostgresImmediate)
	p.Start()
	require.Equal(t, "1|x", query("SELECT * FROM kept"))
	require.Empty(t, query("SELECT * FROM lost"), "it had to recover")

	_, err = p.Query("SELECT 1/0")
	require.ErrorContains(t, err, "division by zero")
}

func TestAStandbyFollowsAndOnlyReads(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	_, err := p.Query("CREATE TABLE a (n int)")
	require.NoError(t, err)
	standby := p.StartStandby()
	_, err = p.Query("INSERT INTO a VALUES (7)")
	require.NoError(t, err)
	realtime.Until(t, func() bool {
		n, err := standby.Query("SELECT * FROM a")
		return err == nil && n == "7"
	}, "the standby has the row")
	_, err = standby.Query("INSERT INTO a VALUES (8)")
	require.ErrorContains(t, err, "read-only transaction")
}

func TestPgBouncerSharesAFewConnectionsAmongMany(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	url := servers.StartPgBouncer(t, p)
	psql := servers.Need(t, "apt-get install postgresql", "psql")
	for range 8 { // clients which stay, and are in no transaction
		client := exec.Command(psql, "-XAtq", url)
		in, err := client.StdinPipe()
		require.NoError(t, err)
		out, err := client.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, client.Start())
		t.Cleanup(func() {
			require.NoError(t, in.Close())
			require.NoError(t, client.Wait())
		})
		_, err = in.Write([]byte("SELECT 1;\n"))
		require.NoError(t, err)
		answer, err := bufio.NewReader(out).ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "1\n", answer)
	}
	n, err := p.Query("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()")
	require.NoError(t, err)
	require.Contains(t, []string{"1", "2", "3", "4"}, n)
}

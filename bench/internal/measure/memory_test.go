package measure

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestResidentPagesAreTheSecondNumber(t *testing.T) {
	pages, err := residentPages([]byte("308211 1234 812 401 0 26022 0\n"))
	require.NoError(t, err)
	require.EqualValues(t, 1234, pages)

	_, err = residentPages([]byte("308211"))
	require.ErrorContains(t, err, `"308211"`)
	_, err = residentPages([]byte("308211 many"))
	require.ErrorContains(t, err, `"many"`)
}

func TestAvailableMemory(t *testing.T) {
	bytes, err := availableBytes([]byte("MemTotal:       24643632 kB\nMemFree:        20000000 kB\nMemAvailable:   23000000 kB\n"))
	require.NoError(t, err)
	require.Equal(t, int64(23000000<<10), bytes)

	_, err = availableBytes([]byte("MemTotal:       24643632 kB\n"))
	require.ErrorContains(t, err, "does not say")
	_, err = availableBytes([]byte("MemAvailable:   lots kB\n"))
	require.ErrorContains(t, err, `"lots"`)
}

func TestMoreMemoryThanThereIsIsRefused(t *testing.T) {
	if !MemoryIsTold() {
		t.Skip("not known on this system")
	}
	require.NoError(t, EnoughMemory(1))
	require.ErrorContains(t, EnoughMemory(1<<60), "-full needs 1073741824.0 GiB of memory")
}

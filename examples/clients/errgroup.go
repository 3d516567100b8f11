package clients

import (
	"context"
	"net/http"

	"golang.org/x/sync/errgroup"
)

// FetchAll returns the contents at all addresses, by a client that has a
// shaper.Transport with a line of that depth. The first error ends it: the
// group's context does, and whoever waits in line leaves at once.
//
// No more goroutines than may wait means that nobody finds the line full: the
// other addresses wait outside of it, for as long as it takes.
func FetchAll(ctx context.Context, client *http.Client, depth int, addresses []string) ([]string, error) {
	contents := make([]string, len(addresses))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(max(1, depth)) // With 0 it would let nobody in.
	for i, address := range addresses {
		g.Go(func() (err error) {
			contents[i], err = get(ctx, client, address)
			return err
		})
	}
	return contents, g.Wait()
}

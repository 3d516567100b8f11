package clients

import (
	"context"
	"net/http"

	"golang.org/x/sync/errgroup"
)

// FetchAll returns the contents at all addresses, by a client that has a
// shaper.Transport with a line of that depth. The first error ends the group's
// context, and all requests that wait in line leave it at once.
//
// There are no more goroutines than may wait, so no request finds the line full. The
// other addresses wait outside of the line, for as long as it takes.
func FetchAll(ctx context.Context, client *http.Client, depth int, addresses []string) ([]string, error) {
	contents := make([]string, len(addresses))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(max(1, depth)) // With a limit of 0, Go would block forever.
	for i, address := range addresses {
		g.Go(func() (err error) {
			contents[i], err = get(ctx, client, address)
			return err
		})
	}
	return contents, g.Wait()
}

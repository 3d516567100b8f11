// Package clients shows the shaper together with what programs use to call APIs: a
// library that retries, and two kinds of worker pools. Its functions are here to be
// copied.
package clients

import (
	"context"
	"fmt"
	"io"
	"net/http"
)

// get returns the content at an address.
func get(ctx context.Context, client *http.Client, address string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return "", err
	}
	answer, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close() // The request keeps its seat until then.
	content, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", address, answer.Status)
	}
	return string(content), err
}

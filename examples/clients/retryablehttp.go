package clients

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/hashicorp/go-retryablehttp"

	"example.com/leakybucket/shaper"
)

// Retrying returns a client of go-retryablehttp whose attempts leave by a shaper,
// each as a request of its own.
//
// The wait after a refusal by the upstream is left to the shaper, which holds all
// requests meanwhile: an attempt that slept on its own would afterwards have to
// enter the line at its end. A request that the shaper itself refuses is not tried
// again here, because the line may be no shorter a second later.
func Retrying(s *shaper.Shaper, base http.RoundTripper) *retryablehttp.Client {
	c := retryablehttp.NewClient()
	c.Logger = nil
	c.HTTPClient = &http.Client{Transport: &shaper.Transport{Limiter: s, Base: base}}
	c.CheckRetry = func(ctx context.Context, answer *http.Response, err error) (bool, error) {
		if _, refused := errors.AsType[*shaper.RejectError](err); refused {
			return false, err
		}
		return retryablehttp.DefaultRetryPolicy(ctx, answer, err)
	}
	c.Backoff = func(shortest, longest time.Duration, attempt int, answer *http.Response) time.Duration {
		if !s.Stats().HeldUntil.IsZero() {
			return 0
		}
		return retryablehttp.DefaultBackoff(shortest, longest, attempt, answer)
	}
	return c
}

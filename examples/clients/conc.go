package clients

import (
	"context"

	"github.com/sourcegraph/conc/pool"

	"example.com/leakybucket/shaper"
)

// DoAll calls an API of any kind once for each input, by a pool of workers of
// conc, and returns the outputs in the order of the inputs. The shaper decides when
// a call may begin, and with [shaper.Limits.InFlight] how many calls run at once. A
// call that panics gives its seat back, and the pool passes the panic on.
func DoAll[In, Out any](ctx context.Context, s *shaper.Shaper, inputs []In, call func(context.Context, In) (Out, error)) ([]Out, error) {
	outputs := make([]Out, len(inputs))
	// With no more workers than may wait, no call finds the line full.
	workers := pool.New().WithMaxGoroutines(max(1, s.Limits().Depth)).WithContext(ctx).WithCancelOnError().WithFirstError()
	for i, input := range inputs {
		workers.Go(func(ctx context.Context) error {
			return s.Do(ctx, 1, func(ctx context.Context) (err error) {
				outputs[i], err = call(ctx, input)
				return err
			})
		})
	}
	return outputs, workers.Wait()
}

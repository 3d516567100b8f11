package redisbucket

// An Option changes a [Bucket] or a [Ring].
type Option func(*Bucket)

// WithPrefix sets the beginning of each key in Redis; the default is "shaper:". It must be the same
// in all processes that share buckets.
func WithPrefix(prefix string) Option { return func(b *Bucket) { b.prefix = prefix } }

module example.com/leakybucket/examples

go 1.26.0

toolchain go1.26.6

require (
	example.com/leakybucket v0.0.0
	example.com/leakybucket/config v0.0.0
	example.com/leakybucket/redisbucket v0.0.0
	github.com/hashicorp/go-retryablehttp v0.7.8
	github.com/redis/go-redis/v9 v9.23.0
	github.com/sourcegraph/conc v0.3.0
	github.com/stretchr/testify v1.12.1
	go.uber.org/goleak v1.3.0
	golang.org/x/sync v0.24.0
	golang.org/x/time v0.16.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/hashicorp/go-cleanhttp v0.5.2 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	go.uber.org/multierr v1.9.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	go.yaml.in/yaml/v4 v4.0.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
)

replace (
	example.com/leakybucket => ../
	example.com/leakybucket/config => ../config
	example.com/leakybucket/redisbucket => ../redisbucket
)

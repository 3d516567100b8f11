module example.com/leakybucket/examples/clients

go 1.26.0

toolchain go1.26.6

require (
	example.com/leakybucket v0.0.0
	github.com/hashicorp/go-retryablehttp v0.7.8
	github.com/sourcegraph/conc v0.3.0
	github.com/stretchr/testify v1.12.1
	golang.org/x/sync v0.24.0
	golang.org/x/time v0.16.0
)

require (
	github.com/hashicorp/go-cleanhttp v0.5.2 // indirect
	go.uber.org/atomic v1.7.0 // indirect
	go.uber.org/multierr v1.9.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)

replace example.com/leakybucket => ../../

module example.com/leakybucket/examples/limitsfile

go 1.26.0

toolchain go1.26.6

require (
	example.com/leakybucket v0.0.0
	example.com/leakybucket/config v0.0.0
	github.com/stretchr/testify v1.12.1
	go.uber.org/goleak v1.3.0
)

require (
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	go.yaml.in/yaml/v4 v4.0.0 // indirect
	golang.org/x/time v0.16.0 // indirect
)

replace example.com/leakybucket => ../../

replace example.com/leakybucket/config => ../../config

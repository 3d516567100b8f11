module example.com/leakybucket/internal/release

go 1.26.0

toolchain go1.26.6

require (
	github.com/stretchr/testify v1.12.1
	golang.org/x/mod v0.42.0
)

require go.yaml.in/yaml/v3 v3.0.5 // indirect

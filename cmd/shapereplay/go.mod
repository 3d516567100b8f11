module example.com/leakybucket/cmd/shapereplay

go 1.26.0

toolchain go1.26.6

require (
	github.com/stretchr/testify v1.12.1
	github.com/valyala/fastjson v1.6.10
)

require go.yaml.in/yaml/v3 v3.0.5 // indirect

replace example.com/leakybucket => ../../

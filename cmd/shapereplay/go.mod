module example.com/leakybucket/cmd/shapereplay

go 1.26.0

toolchain go1.26.6

require (
	example.com/leakybucket v0.0.0
	example.com/leakybucket/config v0.0.0
	example.com/leakybucket/llm v0.0.0
	github.com/klauspost/compress v1.20.1
	github.com/stretchr/testify v1.12.1
	github.com/ulikunitz/xz v0.5.17
	github.com/valyala/fastjson v1.6.10
	go.uber.org/goleak v1.3.0
	golang.org/x/term v0.44.0
	golang.org/x/time v0.16.0
)

require (
	github.com/andybalholm/brotli v1.2.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	go.yaml.in/yaml/v4 v4.0.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
)

replace (
	example.com/leakybucket => ../../
	example.com/leakybucket/config => ../../config
	example.com/leakybucket/llm => ../../llm
)

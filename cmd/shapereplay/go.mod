module example.com/leakybucket/cmd/shapereplay

go 1.26.0

toolchain go1.26.6

require github.com/valyala/fastjson v1.6.10

replace example.com/leakybucket => ../../

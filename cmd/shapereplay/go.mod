module example.com/leakybucket/cmd/shapereplay

go 1.26.0

toolchain go1.26.6

replace example.com/leakybucket => ../../

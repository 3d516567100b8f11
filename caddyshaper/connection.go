package caddyshaper

import (
	"context"
	"net"
	"os"
	"reflect"

	"example.com/leakybucket/shaper"
)

// connContext is [shaper.ConnContext] for a connection of Caddy, which may have wrapped it.
func connContext(ctx context.Context, c net.Conn) context.Context {
	return shaper.ConnContext(ctx, unwrapped(c))
}

// unwrapped returns the connection in Caddy's wrappers, or in those of its listener wrappers:
// the first that has a file descriptor or, like a TLS connection, tells what is in it. Caddy does
// not export its wrappers, but embeds the connection in them.
func unwrapped(c net.Conn) net.Conn {
	for inner := c; inner != nil; {
		switch t := inner.(type) {
		case interface{ File() (*os.File, error) }, interface{ NetConn() net.Conn }:
			return inner
		case interface{ Raw() net.Conn }: // of the PROXY protocol
			inner = t.Raw()
		default:
			inner = embedded(inner)
		}
	}
	return c
}

// embedded returns the connection that is embedded in another; nil if there is none.
func embedded(c net.Conn) net.Conn {
	v := reflect.Indirect(reflect.ValueOf(c))
	if v.Kind() != reflect.Struct {
		return nil
	}
	field, ok := v.Type().FieldByName("Conn")
	if !ok || !field.Anonymous || len(field.Index) != 1 {
		return nil
	}
	inner, _ := v.FieldByIndex(field.Index).Interface().(net.Conn)
	return inner
}

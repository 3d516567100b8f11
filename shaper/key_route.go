package shaper

import (
	"errors"
	"net/http"
	"reflect"
)

// ByRoute returns the pattern that mux would take for a request, such as
// "POST /login" or "/orders/{id}": as it was registered, and nothing of what the
// client sent. So each route is a named action, whose limits are found under
// that name, and all orders are one action.
//
// A request that mux answers itself has no route and the empty key: with 404, with
// 405, or by sending a CONNECT to the path with a slash at its end. With other
// methods such a redirect, and that of a path which is not clean, has the key of
// the route that it leads to. Give those without a route a limit as well, or a
// client asks for what does not exist as often as it likes.
//
// The mux must see the request as it is now. What stands between this and mux and
// changes the method, the host or the path, as http.StripPrefix does, makes them
// disagree, and then a client may get a route under another's limit: put the
// limit behind it. Routes can be added to mux later. With a nil mux each call is
// an error.
func ByRoute(mux *http.ServeMux) KeyFunc {
	return func(r *http.Request) (string, error) {
		if mux == nil {
			return "", errNoMux
		}
		handler, pattern := mux.Handler(r)
		if r.Method == http.MethodConnect && reflect.TypeOf(handler) == redirect {
			// Of this redirect the mux tells the path that it leads to and not the
			// pattern: words of the client's, that could be the name of a rule.
			return "", nil
		}
		return pattern, nil
	}
}

var errNoMux = errors.New("shaper: ByRoute: mux is nil, must be the ServeMux whose routes are meant")

// redirect is the type of the handlers with which a mux redirects.
var redirect = reflect.TypeOf(http.RedirectHandler("/", http.StatusTemporaryRedirect))

package shaper

import (
	"errors"
	"net/http"
	"reflect"
)

// ByRoute returns a [KeyFunc] whose key is the pattern that mux matches for a request,
// such as "POST /login" or "/orders/{id}": as it was registered, without anything that
// the client sent. So each route is a named action, whose limits are found under that
// name, and all orders are one action.
//
// A request without a route, which mux answers itself with 404 or 405, has the empty
// key. So has a CONNECT that mux redirects to the path with a trailing slash. With other
// methods, a request that mux redirects, to a trailing slash or to the clean path, has
// the key of the route to which the redirect leads. Limit the empty key as well, or
// clients may ask as often as they like for what does not exist.
//
// The mux must see the request as this function does. If something in between changes
// the method, the host or the path, as http.StripPrefix does, the two disagree, and a
// client may get a route under the limit of another: put the limit behind it. Routes
// can be added to mux later. If mux is nil, every call returns an error.
func ByRoute(mux *http.ServeMux) KeyFunc {
	return func(r *http.Request) (string, error) {
		if mux == nil {
			return "", errNoMux
		}
		handler, pattern := mux.Handler(r)
		if r.Method == http.MethodConnect && reflect.TypeOf(handler) == redirect {
			// For this redirect the mux returns not a pattern but the path to which it
			// leads: the client chose it, and it could be the name of a rule.
			return "", nil
		}
		return pattern, nil
	}
}

var errNoMux = errors.New("shaper: ByRoute: mux is nil, must be the ServeMux whose routes are meant")

// redirect is the type of the handlers with which a mux redirects.
var redirect = reflect.TypeOf(http.RedirectHandler("/", http.StatusTemporaryRedirect))

package shaper

import (
	"errors"
	"net/http"
	"reflect"
)

// ByRoute returns a [KeyFunc] whose key is the pattern that mux matches for a request,
// such as "POST /login" or "/orders/{id}". The key is the pattern as it was registered,
// without anything that the client sent: each route has limits under its own name, and
// the requests for all orders share one key.
//
// A request without a route, which mux answers itself with 404 or 405, has the empty
// key. So has a CONNECT that mux redirects to the path with a trailing slash. With other
// methods, a request that mux redirects, to a trailing slash or to the clean path, has
// the key of the route to which the redirect leads. Limit the empty key as well, or
// clients may ask as often as they like for what does not exist.
//
// The mux must see the request as this function does. If a handler in between changes
// the method, the host or the path, as [http.StripPrefix] does, the two disagree, and a
// client may get a route under the limit of another route. Then put the limit behind
// that handler. Routes can be added to mux later. If mux is nil, every call returns an
// error.
func ByRoute(mux *http.ServeMux) KeyFunc {
	return func(r *http.Request) (string, error) {
		if mux == nil {
			return "", errNoMux
		}
		handler, pattern := mux.Handler(r)
		if r.Method == http.MethodConnect && reflect.TypeOf(handler) == redirect {
			// For this redirect the mux returns, instead of a pattern, the path to which
			// it leads. The client chose that path, and it could be the name of a rule.
			return "", nil
		}
		return pattern, nil
	}
}

var errNoMux = errors.New("shaper: ByRoute: mux is nil, must be the ServeMux whose routes are meant")

// redirect is the type of the handlers with which a mux redirects.
var redirect = reflect.TypeOf(http.RedirectHandler("/", http.StatusTemporaryRedirect))

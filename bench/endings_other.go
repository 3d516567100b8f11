//go:build !unix

package main

import "os"

// endings are the signals that end the program in good order.
var endings = []os.Signal{os.Interrupt}

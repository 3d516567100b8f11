package model

import "os"

// long reports whether the great counts are wanted (CI sets SHAPER_LONG=1).
var long = os.Getenv("SHAPER_LONG") == "1"

package accesslog

// SetMaxHeld sets how many bytes of requests each buffer of a reader holds.
func SetMaxHeld(r *Reader, bytes int) { r.stamped.most = bytes }

// Held returns how many bytes of requests a reader holds.
func Held(r *Reader) int { return r.stamped.held.size + r.arrived.size }

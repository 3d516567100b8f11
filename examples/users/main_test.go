package main

// This is what docs/keys.md shows.
func Example() {
	main()
	// Output:
	// ann 200
	// ann 200
	// ann 200
	// ann 429
	// bob 200
	// stranger 200
	// stranger 429
}

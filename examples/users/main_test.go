package main

// Ann has the same bucket by a cookie and by a token, and a forged token is a stranger's.
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

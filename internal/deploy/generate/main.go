// Command generate writes the board for Grafana to the file that it is given.
package main

import (
	"log"
	"os"

	"example.com/leakybucket/internal/deploy/board"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: generate <file>")
	}
	text, err := board.JSON()
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(os.Args[1], text, 0o644); err != nil {
		log.Fatal(err)
	}
}

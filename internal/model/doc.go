// Package model is a simulator of a shaper, for tests to compare a shaper with.
package model

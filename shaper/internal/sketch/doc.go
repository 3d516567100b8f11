// Package sketch answers two questions about a stream of keys in fixed memory,
// approximately and with stated bounds: which keys occur most ([TopK]), and how many
// different ones there are ([Distinct]).
package sketch

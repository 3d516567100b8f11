// Package comingfrom holds docs/coming-from.md to what it says. The document has, for each of several other
// limiters, a table of that limiter's calls with ours beside them. A test here runs both for each row, in one
// bubble of testing/synctest, and shows what is alike and what differs. There is nothing but tests.
package comingfrom

// Package comingfrom tests docs/coming-from.md. The document has, for each of several other limiters, a table
// of that limiter's calls with ours beside them. A test here runs both for each row, in one bubble of
// testing/synctest, and shows in which respects they are alike and differ. There is nothing but tests.
package comingfrom

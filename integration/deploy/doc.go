// Package deploy holds the tests of the folder deploy at the root of the tree: the
// unit of systemd, the image, the Compose file, and the board of Grafana. The go command does not
// notice a change of a file outside of a module, so after one the tests are to be run with
// -count=1.
package deploy

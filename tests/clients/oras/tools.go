//go:build tools

// The oras client at a pinned version: `go build oras.land/oras/cmd/oras` in this folder makes the program.
package tools

import _ "oras.land/oras/cmd/oras"

//go:build tools

// Pins the version of the oras client. Build it in this folder: `go build oras.land/oras/cmd/oras`
package tools

import _ "oras.land/oras/cmd/oras"

//go:build tools

// Pins the version of crane. Build it in this folder: `go build github.com/google/go-containerregistry/cmd/crane`
package tools

import _ "github.com/google/go-containerregistry/cmd/crane"

//go:build tools

// Pins the version of the distribution registry, which `tests/bench/run` measures. Build it in this folder:
// `go build github.com/distribution/distribution/v3/cmd/registry`
package tools

import _ "github.com/distribution/distribution/v3/cmd/registry"

//go:build tools

// The distribution registry at a pinned version, which `tests/bench/run` measures: `go build github.com/distribution/distribution/v3/cmd/registry` in this folder makes the program.
package tools

import _ "github.com/distribution/distribution/v3/cmd/registry"

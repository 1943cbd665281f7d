//go:build tools

// The cosign client at a pinned version: `go build github.com/sigstore/cosign/v3/cmd/cosign` in this folder makes the program.
package tools

import _ "github.com/sigstore/cosign/v3/cmd/cosign"

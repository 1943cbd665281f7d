//go:build tools

// Pins the version of the cosign client. Build it in this folder: `go build
// github.com/sigstore/cosign/v3/cmd/cosign`
package tools

import _ "github.com/sigstore/cosign/v3/cmd/cosign"

//go:build tools

// Pins the version of compose-go, whose program checks a compose file against the Compose specification. Build it in
// this folder: `go build github.com/compose-spec/compose-go/v2/cmd`
package tools

import _ "github.com/compose-spec/compose-go/v2/cmd"

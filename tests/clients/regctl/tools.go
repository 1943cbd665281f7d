//go:build tools

// Pins the version of regctl. Build it in this folder: `go build github.com/regclient/regclient/cmd/regctl`
package tools

import _ "github.com/regclient/regclient/cmd/regctl"

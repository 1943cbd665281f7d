//go:build tools

// Pins the version of an S3 server. Build it in this folder: `go build
// github.com/versity/versitygw/cmd/versitygw`
package tools

import _ "github.com/versity/versitygw/cmd/versitygw"

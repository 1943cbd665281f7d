//go:build tools

// An S3 server at a pinned version: `go build github.com/versity/versitygw/cmd/versitygw` in this folder makes the program.
package tools

import _ "github.com/versity/versitygw/cmd/versitygw"

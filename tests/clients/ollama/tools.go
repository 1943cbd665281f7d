//go:build tools

// Pins the version of ollama. Build it in this folder: `go build github.com/ollama/ollama` A Go module
// excludes llama.cpp's folder `vendor/`, so three header files come from elsewhere: two from Debian packages,
// miniaudio.h from the malgo module.
package tools

import (
	_ "github.com/gen2brain/malgo"
	_ "github.com/ollama/ollama"
)

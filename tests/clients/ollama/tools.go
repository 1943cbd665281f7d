//go:build tools

// ollama at a pinned version: `go build github.com/ollama/ollama` in this folder makes the program. A module leaves out the folder
// `vendor/` of llama.cpp, so three header files come from elsewhere: two from Debian's packages, miniaudio.h from the module beside it.
package tools

import (
	_ "github.com/gen2brain/malgo"
	_ "github.com/ollama/ollama"
)

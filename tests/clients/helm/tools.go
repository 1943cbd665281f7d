//go:build tools

// Pins the version of helm. Build it in this folder: `go build helm.sh/helm/v4/cmd/helm`
package tools

import _ "helm.sh/helm/v4/cmd/helm"

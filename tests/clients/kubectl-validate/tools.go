//go:build tools

// Pins the version of kubectl-validate, which contains the schemas of Kubernetes. Build it in this folder:
// `go build sigs.k8s.io/kubectl-validate`
package tools

import _ "sigs.k8s.io/kubectl-validate"

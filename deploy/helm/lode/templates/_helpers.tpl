{{- define "lode.name" -}}
{{- if contains "lode" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-lode" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "lode.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "lode.selector" -}}
app.kubernetes.io/name: lode
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "lode.serverSelector" -}}
{{ include "lode.selector" . }}
app.kubernetes.io/component: server
{{- end }}

{{- define "lode.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "lode.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (ternary (include "lode.name" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- define "lode.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "lode.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}

{{- define "lode.secretVariable" -}}
- name: {{ .variable }}
  valueFrom: { secretKeyRef: { name: {{ .secret }}, key: {{ .key }}{{ if .optional }}, optional: true{{ end }} } }
{{- end }}

{{/* Names and labels. A name is RELEASE-CHART, so that the charts of one release find each other without being told. */}}

{{- define "common.name" -}}
{{- printf "%s-%s" (trunc 40 .Release.Name | trimSuffix "-") .Chart.Name -}}
{{- end }}

{{/* The same for another chart or thing of this release: include "common.sibling" (list . "kafka") */}}
{{- define "common.sibling" -}}
{{- printf "%s-%s" (trunc 40 (index . 0).Release.Name | trimSuffix "-") (index . 1) -}}
{{- end }}

{{- define "common.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "common.labels" -}}
{{ include "common.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: keyshift
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* Of a pod: what does not change from version to version, so that an upgrade of the chart alone restarts nothing. */}}
{{- define "common.podLabels" -}}
{{ include "common.selector" . }}
app.kubernetes.io/part-of: keyshift
{{- end }}

{{/* The pods of a chart that are not the service itself (tests, batches) are not selected by its Service:
     include "common.helperLabels" (list . "test") */}}
{{- define "common.helperLabels" -}}
app.kubernetes.io/name: {{ (index . 0).Chart.Name }}-{{ index . 1 }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/part-of: keyshift
{{- end }}

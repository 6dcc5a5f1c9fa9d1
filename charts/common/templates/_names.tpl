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
app.kubernetes.io/instance: {{ .Release.Name | quote }}
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
app.kubernetes.io/instance: {{ (index . 0).Release.Name | quote }}
app.kubernetes.io/part-of: keyshift
{{- end }}

{{/* How many nodes Kafka and ZooKeeper have each: one, or three of which one may be away. */}}
{{- define "common.nodes" -}}
{{- (.Values.global).nodes | default 1 | int -}}
{{- end }}

{{/* The names under which several nodes of a service are found, with commas between:
     include "common.hosts" (list . "kafka" ":9092") */}}
{{- define "common.hosts" -}}
{{- $at := index . 0 -}}
{{- $name := include "common.sibling" (list $at (index . 1)) -}}
{{- range $number := until (int (include "common.nodes" $at)) -}}
{{- if $number }},{{ end -}}
{{- printf "%s-%d.%s-nodes.%s.svc%s" $name $number $name $at.Release.Namespace (index $ 2) -}}
{{- end -}}
{{- end }}

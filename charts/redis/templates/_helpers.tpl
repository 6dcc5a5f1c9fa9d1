{{- define "redis.secret" -}}
{{- .Values.existingSecret.name | default (include "common.name" .) -}}
{{- end }}

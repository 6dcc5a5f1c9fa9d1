{{/* A secret text that is generated once and kept over upgrades:
     include "common.kept" (dict "at" . "secret" NAME "key" KEY "new" TEXT), base64.
     Where the cluster cannot be asked (`helm template`, a client-side dry run) it is a new one each time. */}}
{{- define "common.kept" -}}
{{- $found := lookup "v1" "Secret" .at.Release.Namespace .secret | default dict -}}
{{- index ($found.data | default dict) .key | default (b64enc .new) -}}
{{- end }}

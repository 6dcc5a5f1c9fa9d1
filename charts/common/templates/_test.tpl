{{/* A pod of `helm test` that runs a Python script of the chart in keyshift's image:
     include "common.test" (dict "at" . "name" "roundtrip" "script" "files/roundtrip.py" "env" "..." "account" "") */}}
{{- define "common.test" -}}
{{- $account := .account -}}
{{- $env := .env -}}
{{- $name := .name -}}
{{- $script := .script -}}
{{- with .at -}}
apiVersion: v1
kind: Pod
metadata:
  name: {{ include "common.name" . }}-test-{{ $name }}
  labels:
    {{- include "common.helperLabels" (list . "test") | nindent 4 }}
  annotations:
    helm.sh/hook: test
    helm.sh/hook-delete-policy: before-hook-creation
spec:
  restartPolicy: Never
  activeDeadlineSeconds: 180
  {{- with $account }}
  serviceAccountName: {{ . | quote }}
  {{- end }}
  automountServiceAccountToken: {{ not (empty $account) }}
  {{- with include "common.pullSecrets" . }}
  {{- . | nindent 2 }}
  {{- end }}
  securityContext:
    {{- include "common.podSecurity" . | nindent 4 }}
  {{- with include "common.placement" .Values }}
  {{- . | nindent 2 }}
  {{- end }}
  containers:
    - name: test
      image: {{ include "common.image" . }}
      imagePullPolicy: {{ include "common.pullPolicy" . }}
      args: [python, -c, {{ required "a script of the chart" (.Files.Get $script) | toJson }}]
      env:
        {{- $env | nindent 8 }}
      securityContext:
        {{- include "common.containerSecurity" . | nindent 8 }}
      resources:
        requests: {cpu: 50m, memory: 128Mi}
        limits: {memory: 512Mi}
      volumeMounts:
        {{- include "common.writableMounts" . | nindent 8 }}
  volumes:
    {{- include "common.writableVolumes" . | nindent 4 }}
{{- end }}
{{- end }}

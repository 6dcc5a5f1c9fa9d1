{{- define "lab.driverAccount" -}}
{{- .Values.serviceAccounts.driver | default (include "common.sibling" (list . "driver")) -}}
{{- end }}

{{- define "lab.executorAccount" -}}
{{- .Values.serviceAccounts.executor | default (include "common.sibling" (list . "executor")) -}}
{{- end }}

{{/* include "lab.address" (list . "kafka" 9092) */}}
{{- define "lab.address" -}}
{{- $name := index . 1 -}}
{{- $port := index . 2 -}}
{{- with index . 0 -}}
{{- $given := index .Values.services $name -}}
{{- if and .Chart.IsRoot (not $given) -}}
{{- fail (printf "services.%s is empty: installed alone, this chart needs the host:port of each service" $name) -}}
{{- end -}}
{{- if and (not $given) (has $name (list "kafka" "zookeeper")) (gt (int (include "common.nodes" .)) 1) -}}
{{- include "common.hosts" (list . $name (printf ":%v" $port)) -}}
{{- else -}}
{{- $given | default (printf "%s:%v" (include "common.sibling" (list . $name)) $port) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* What network policies and affinities tell apart: include "lab.role" (list . "driver") */}}
{{- define "lab.role" -}}
app.kubernetes.io/instance: {{ (index . 0).Release.Name | quote }}
app.kubernetes.io/part-of: keyshift
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "lab.storeSecret" -}}
{{- .Values.store.existingSecret.name | default (include "common.sibling" (list . "minio")) -}}
{{- end }}

{{/* Empty: no password. */}}
{{- define "lab.redisSecret" -}}
{{- .Values.redisAccess.existingSecret.name | default (empty .Values.services.redis | ternary (include "common.sibling" (list . "redis")) "") -}}
{{- end }}

{{- define "lab.controlSecret" -}}
{{- .Values.control.existingSecret.name | default (include "common.sibling" (list . "control")) -}}
{{- end }}

{{/* What Prometheus shows to who answers at a port of control. */}}
{{- define "lab.scrapeAuthorization" -}}
authorization:
  type: Bearer
  credentials:
    name: {{ include "lab.controlSecret" . | quote }}
    key: {{ .Values.control.existingSecret.token | quote }}
{{- end }}

{{/* Of who answers at a port of control. */}}
{{- define "lab.controlEnv" -}}
{{- if .Values.control.enabled }}
- name: KEYSHIFT_CONTROL_TOKEN
  valueFrom: {secretKeyRef: {name: {{ include "lab.controlSecret" . | quote }}, key: {{ .Values.control.existingSecret.token | quote }}}}
{{- end }}
{{- end }}

{{/* Any pod that is a driver: Jupyter's and those of batches. */}}
{{- define "lab.driverEnv" -}}
- name: KEYSHIFT_PROFILE
  value: /etc/keyshift/profile.yaml
- name: KEYSHIFT_ACCESS_KEY
  valueFrom: {secretKeyRef: {name: {{ include "lab.storeSecret" . | quote }}, key: {{ .Values.store.existingSecret.accessKey | quote }}}}
- name: KEYSHIFT_SECRET_KEY
  valueFrom: {secretKeyRef: {name: {{ include "lab.storeSecret" . | quote }}, key: {{ .Values.store.existingSecret.secretKey | quote }}}}
{{- if .Values.kafkaAccess.sasl }}
{{- with .Values.kafkaAccess.existingSecret }}
{{- $name := required "kafkaAccess.existingSecret.name is empty: with kafkaAccess.sasl it names the Secret with user and password" .name }}
- name: KEYSHIFT_KAFKA_USER
{{- with $.Values.kafkaAccess.user }}
  value: {{ . | quote }}
{{- else }}
  valueFrom: {secretKeyRef: {name: {{ $name | quote }}, key: {{ .user | quote }}}}
{{- end }}
- name: KEYSHIFT_KAFKA_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ $name | quote }}, key: {{ .password | quote }}}}
{{- end }}
{{- end }}
{{- with include "lab.redisSecret" . }}
- name: KEYSHIFT_REDIS_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: {{ $.Values.redisAccess.existingSecret.password | quote }}}}
{{- end }}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
{{- end }}

{{- define "lab.driverSpec" -}}
serviceAccountName: {{ include "lab.driverAccount" . | quote }}
automountServiceAccountToken: true  # Spark asks the API server for executors
enableServiceLinks: false
terminationGracePeriodSeconds: 60  # to end a run and its executors
{{- with include "common.pullSecrets" . }}
{{ . }}
{{- end }}
securityContext:
  {{- include "common.podSecurity" . | nindent 2 }}
{{- with include "common.placement" .Values }}
{{- . }}
{{- end }}
{{- end }}

{{/* The profile, and the files that it names. */}}
{{- define "lab.profileMount" -}}
- name: profile
  mountPath: /etc/keyshift
  readOnly: true
{{- if .Values.kafkaAccess.authoritySecret.name }}
- name: kafka-authority
  mountPath: /etc/keyshift-kafka
  readOnly: true
{{- end }}
{{- if .Values.flight.tlsSecret }}
- name: flight
  mountPath: /etc/keyshift-flight
  readOnly: true
{{- end }}
{{- end }}

{{- define "lab.profileVolume" -}}
- name: profile
  configMap:
    name: {{ include "common.sibling" (list . "profile") }}
{{- with .Values.kafkaAccess.authoritySecret }}
{{- if .name }}
- name: kafka-authority
  secret:
    secretName: {{ .name | quote }}
    items:
      - {key: {{ .key | quote }}, path: authority.pem}
{{- end }}
{{- end }}
{{- with .Values.flight.tlsSecret }}
- name: flight
  secret:
    secretName: {{ . | quote }}
{{- end }}
{{- end }}

{{/* One term of a pod anti-affinity: include "lab.apartFrom" (list . "driver") */}}
{{- define "lab.apartFrom" -}}
topologyKey: kubernetes.io/hostname
labelSelector:
  matchLabels:
    {{- include "lab.role" . | nindent 4 }}
{{- end }}

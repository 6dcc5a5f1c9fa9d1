{{/* The pod that Spark starts from: image, command, memory, CPU, owner and volumes for shuffles come from Spark. */}}
{{- define "lab.executor" -}}
apiVersion: v1
kind: Pod
metadata:
  labels:
    app.kubernetes.io/name: executor
    {{- include "lab.role" (list . "executor") | nindent 4 }}
  annotations:
    cluster-autoscaler.kubernetes.io/safe-to-evict: "false"
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with include "common.pullSecrets" . }}
  {{- . | nindent 2 }}
  {{- end }}
  securityContext:
    {{- include "common.podSecurity" . | nindent 4 }}
  {{- with include "common.placement" .Values.executors }}
  {{- . | trim | nindent 2 }}
  {{- end }}
  {{- $wishes := list }}
  {{- $demands := list }}
  {{- range $role, $strength := dict "executor" .Values.executors.spread "driver" .Values.executors.apartFromDriver }}
  {{- $term := include "lab.apartFrom" (list $ $role) | fromYaml }}
  {{- if and (eq $role "executor") (ne $.Values.executors.replicasApart "none") }}
  {{- $_ := set $term.labelSelector "matchExpressions" (list (dict "key" "keyshift/replica" "operator" "DoesNotExist")) }}
  {{- end }}
  {{- if eq $strength "preferred" }}
  {{- $wishes = append $wishes (dict "weight" 100 "podAffinityTerm" $term) }}
  {{- else if eq $strength "required" }}
  {{- $demands = append $demands $term }}
  {{- end }}
  {{- end }}
  {{- $together := list }}
  {{- if ne .Values.executors.replicasApart "none" }}
  {{- $replicas := include "lab.apartFrom" (list . "executor") | fromYaml }}
  {{- $keys := list "keyshift/replica" }}
  {{- $wishes = append $wishes (dict "weight" 100 "podAffinityTerm" (merge (dict "mismatchLabelKeys" $keys) $replicas)) }}
  {{- $together = append $together (dict "weight" 100 "podAffinityTerm" (merge (dict "matchLabelKeys" $keys) $replicas)) }}
  {{- end }}
  {{- if or $wishes $demands }}
  affinity:
    {{- with $together }}
    # An executor without a replica is drawn to all others by this as much as it is kept from them by the term below.
    podAffinity:
      preferredDuringSchedulingIgnoredDuringExecution:
        {{- toYaml . | nindent 8 }}
    {{- end }}
    podAntiAffinity:
      {{- with $wishes }}
      preferredDuringSchedulingIgnoredDuringExecution:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $demands }}
      requiredDuringSchedulingIgnoredDuringExecution:
        {{- toYaml . | nindent 8 }}
      {{- end }}
  {{- end }}
  containers:
    - name: executor
      securityContext:
        {{- include "common.containerSecurity" . | nindent 8 }}
      volumeMounts:
        {{- include "common.writableMounts" . | nindent 8 }}
  volumes:
    {{- include "common.writableVolumes" . | nindent 4 }}
{{- end }}

{{/* Who may talk to a pod, and when it may be evicted. */}}

{{/* The pods of keyshift in this namespace, of whatever release, and those that the values add. */}}
{{- define "common.peers" -}}
- podSelector:
    matchLabels:
      app.kubernetes.io/part-of: keyshift
{{- with .Values.networkPolicy.extraFrom }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Of a service that answers and asks nobody but itself: include "common.servicePolicy" (list . 9092)
     Of one that may have several nodes with the ports at which they find each other: (list . 9092 9093) */}}
{{- define "common.servicePolicy" -}}
{{- $port := index . 1 -}}
{{- $among := slice . 2 -}}
{{- with index . 0 -}}
{{- if .Values.networkPolicy.enabled -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "common.name" . }}
  labels:
    {{- include "common.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels:
      {{- include "common.selector" . | nindent 6 }}
  policyTypes: [Ingress, Egress]
  ingress:
    - from:
        {{- include "common.peers" . | nindent 8 }}
      ports:
        - port: {{ $port }}
          protocol: TCP
    {{- if and $among (gt (int (include "common.nodes" .)) 1) }}
    - from:
        - podSelector:
            matchLabels:
              {{- include "common.selector" . | nindent 14 }}
      ports:
        {{- range $among }}
        - port: {{ . }}
          protocol: TCP
        {{- end }}
    {{- end }}
  egress:
    - ports:  # names, wherever the cluster's DNS is
        - port: 53
          protocol: UDP
        - port: 53
          protocol: TCP
    - to:
        - podSelector:
            matchLabels:
              {{- include "common.selector" . | nindent 14 }}
{{- end }}
{{- end }}
{{- end }}

{{/* One replica: evicting it ends the experiment, so a drain waits until the release is gone or the budget is off. Of
     three nodes one may be evicted: include "common.budget" (list . 3) */}}
{{- define "common.budget" -}}
{{- $nodes := index . 1 -}}
{{- with index . 0 -}}
{{- if .Values.podDisruptionBudget.enabled -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "common.name" . }}
  labels:
    {{- include "common.labels" . | nindent 4 }}
spec:
  minAvailable: {{ add (div (int $nodes) 2) 1 }}
  selector:
    matchLabels:
      {{- include "common.selector" . | nindent 6 }}
{{- end }}
{{- end }}
{{- end }}

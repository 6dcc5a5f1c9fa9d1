{{/* What every pod of keyshift has. */}}

{{/* Values of the chart win over those for all charts (global.image), those over the chart's own version. A digest is
     that of a tag: the one for all is not that of a chart which has a tag of its own. */}}
{{- define "common.image" -}}
{{- $all := (.Values.global).image | default dict -}}
{{- $own := .Values.image -}}
{{- $repository := $own.repository | default $all.repository | default "keyshift" -}}
{{- $tag := $own.tag | default $all.tag | default .Chart.AppVersion -}}
{{- $digest := $own.digest | default ($own.tag | empty | ternary $all.digest "") -}}
{{- $repository }}:{{ $tag }}{{ with $digest }}@{{ . }}{{ end -}}
{{- end }}

{{- define "common.pullPolicy" -}}
{{- .Values.image.pullPolicy | default ((.Values.global).image).pullPolicy | default "IfNotPresent" -}}
{{- end }}

{{- define "common.pullSecrets" -}}
{{- with .Values.image.pullSecrets | default ((.Values.global).image).pullSecrets -}}
imagePullSecrets:
{{- range . }}
  - name: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- define "common.podSecurity" -}}
runAsNonRoot: true
runAsUser: 1000
runAsGroup: 1000
fsGroup: 1000
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "common.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* The root file system is read-only: these are all the places where a process can write. */}}
{{- define "common.writableMounts" -}}
- name: home
  mountPath: /var/lib/keyshift
- name: tmp
  mountPath: /tmp
{{- end }}

{{- define "common.writableVolumes" -}}
- name: home
  emptyDir: {}
- name: tmp
  emptyDir: {}
{{- end }}

{{/* Where pods go: include "common.placement" .Values */}}
{{- define "common.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The volume of a service's data: a claim of the StatefulSet (common.claim), else one that dies with the pod. */}}
{{- define "common.dataVolume" -}}
{{- if not .Values.persistence.enabled }}
- name: data
  emptyDir:
    sizeLimit: {{ .Values.persistence.size }}
{{- end }}
{{- end }}

{{- define "common.claim" -}}
{{- if .Values.persistence.enabled }}
volumeClaimTemplates:
  - metadata:
      name: data
      labels:
        {{- include "common.podLabels" . | nindent 8 }}
    spec:
      accessModes: [ReadWriteOnce]
      {{- with .Values.persistence.storageClass }}
      storageClassName: {{ . | quote }}
      {{- end }}
      resources:
        requests:
          storage: {{ .Values.persistence.size }}
{{- end }}
{{- end }}

{{/* Of a StatefulSet that may have several nodes: how many, who names them, and that none waits for another one. These
     cannot change later: install with as many nodes as are needed. */}}
{{- define "common.replicas" -}}
{{- $nodes := int (include "common.nodes" .) -}}
replicas: {{ $nodes }}
serviceName: {{ include "common.name" . }}{{ gt $nodes 1 | ternary "-nodes" "" }}
{{- if gt $nodes 1 }}
podManagementPolicy: Parallel  # a node is ready when it has found a majority
{{- end }}
{{- end }}

{{/* Several nodes of a service on machines of their own, if there are some. */}}
{{- define "common.apart" -}}
{{- if gt (int (include "common.nodes" .)) 1 }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "common.selector" . | nindent 14 }}
{{- end }}
{{- end }}

{{/* The Service that gives each of several nodes a name: include "common.nodesService" (list . (dict "kafka" 9092)) */}}
{{- define "common.nodesService" -}}
{{- $ports := index . 1 -}}
{{- with index . 0 -}}
{{- if gt (int (include "common.nodes" .)) 1 -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "common.name" . }}-nodes
  labels:
    {{- include "common.labels" . | nindent 4 }}
spec:
  clusterIP: None
  publishNotReadyAddresses: true  # nodes find each other before they are ready
  selector:
    {{- include "common.selector" . | nindent 4 }}
  ports:
    {{- range $name, $port := $ports }}
    - name: {{ $name }}
      port: {{ $port }}
      targetPort: {{ $port }}
      protocol: TCP
    {{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/*
The pod, once for all workloads. `role` is `front` where the public ports are,
`worker` on the other nodes of a group, whose ranks nobody but the front asks.
*/}}
{{- define "lockstep.pod" -}}
{{- $root := .root }}
{{- with .root.Values }}
metadata:
  labels:
    {{- include "lockstep.servers" $root | nindent 4 }}
    {{- with .commonLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- with .podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    {{- /* A changed file of options starts the pods anew. */}}
    checksum/config: {{ include (print $root.Template.BasePath "/configmap.yaml") $root | sha256sum }}
    kubectl.kubernetes.io/default-container: lockstep
    {{- with .podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- with .imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  serviceAccountName: {{ include "lockstep.serviceAccount" $root }}
  automountServiceAccountToken: false
  # A service called lockstep would otherwise set LOCKSTEP_PORT.
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "lockstep.grace" $root }}
  securityContext:
    {{- toYaml .podSecurityContext | nindent 4 }}
  {{- with .runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with .priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .schedulerName }}
  schedulerName: {{ . }}
  {{- end }}
  {{- with .nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with include "lockstep.tolerations" $root | fromYamlArray }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- range . }}
    {{- $selector := dict "labelSelector" (dict "matchLabels" (include "lockstep.fronts" $root | fromYaml)) }}
    - {{- toYaml (merge (deepCopy .) $selector) | nindent 6 }}
    {{- end }}
  {{- end }}
  {{- if or (gt (int .nodes) 1) .initContainers }}
  initContainers:
    {{- if gt (int .nodes) 1 }}
    {{- include "lockstep.wait" $root | nindent 4 }}
    {{- end }}
    {{- with .initContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
  containers:
    {{- include "lockstep.container" $ | nindent 4 }}
    {{- with .extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    {{- include "lockstep.volumes" $ | nindent 4 }}
{{- end }}
{{- end }}

{{/* Longer than what a pod may take to end: until nobody asks it, and its drain. */}}
{{- define "lockstep.grace" -}}
{{- if hasKey .Values "terminationGracePeriodSeconds" }}
{{- int .Values.terminationGracePeriodSeconds }}
{{- else }}
{{- add (include "lockstep.drain" . | int) (int .Values.preStopSeconds) 15 }}
{{- end }}
{{- end }}

{{- define "lockstep.tolerations" -}}
{{- $tolerations := .Values.tolerations }}
{{- if and .Values.gpu.count .Values.gpu.toleration }}
{{- $tolerations = append $tolerations (dict "key" .Values.gpu.resource "operator" "Exists" "effect" "NoSchedule") }}
{{- end }}
{{- toYaml $tolerations }}
{{- end }}

{{/*
The leader's name is not known the moment its pod starts, and a group whose
container ends is recreated as a whole: so each pod waits for the name first.
*/}}
{{- define "lockstep.wait" -}}
- name: wait-for-leader
  image: {{ include "lockstep.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command:
    - bash
    - -c
    - until getent hosts "$LWS_LEADER_ADDRESS"; do sleep 1; done
  resources:
    requests:
      cpu: 10m
      memory: 16Mi
    limits:
      cpu: 100m
      memory: 64Mi
  securityContext:
    {{- toYaml .Values.securityContext | nindent 4 }}
{{- end }}

{{- define "lockstep.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/*
At most 40 characters, so that what controllers add to names of pods and to
their labels fits into 63.
*/}}
{{- define "lockstep.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* The controller of a LeaderWorkerSet makes a service of the set's name. */}}
{{- define "lockstep.lws" -}}
{{ include "lockstep.fullname" . }}-nodes
{{- end }}

{{- define "lockstep.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "lockstep.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | trunc 63 | trimSuffix "-" | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "lockstep.selector" -}}
app.kubernetes.io/name: {{ include "lockstep.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Labels of all server pods, workers of other nodes included. */}}
{{- define "lockstep.servers" -}}
{{ include "lockstep.selector" . }}
app.kubernetes.io/component: server
{{- end }}

{{/* Labels of the pods that have public ports: of several nodes the first. */}}
{{- define "lockstep.fronts" -}}
{{ include "lockstep.servers" . }}
{{- if gt (int .Values.nodes) 1 }}
leaderworkerset.sigs.k8s.io/worker-index: "0"
{{- end }}
{{- end }}

{{- define "lockstep.gateways" -}}
{{ include "lockstep.selector" . }}
app.kubernetes.io/component: gateway
{{- end }}

{{- define "lockstep.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- .Values.serviceAccount.name | default (include "lockstep.fullname" .) }}
{{- else }}
{{- .Values.serviceAccount.name | default "default" }}
{{- end }}
{{- end }}

{{- define "lockstep.image" -}}
{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}

{{- define "lockstep.modelClaim" -}}
{{- if .Values.model.create }}
{{- .Values.model.existingClaim | default (printf "%s-model" (include "lockstep.fullname" .)) }}
{{- else }}
{{- .Values.model.existingClaim }}
{{- end }}
{{- end }}

{{/* apiVersion, kind and name of what is scaled. */}}
{{- define "lockstep.scaled" -}}
{{- if gt (int .Values.nodes) 1 }}
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
name: {{ include "lockstep.lws" . }}
{{- else }}
apiVersion: apps/v1
kind: {{ .Values.workload }}
name: {{ include "lockstep.fullname" . }}
{{- end }}
{{- end }}

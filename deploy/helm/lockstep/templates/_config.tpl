{{/*
The options of the configuration file, as YAML: what the chart knows, and over
it what `config` says.
*/}}
{{- define "lockstep.config" -}}
{{- $nodes := int .Values.nodes }}
{{- $gpus := int .Values.gpu.count }}
{{- $known := dict "run-dir" "/run/lockstep" }}
{{- if include "lockstep.modelClaim" . }}
{{- $_ := set $known "model-path" (printf "/model/%s" .Values.model.path | trimSuffix "/") }}
{{- end }}
{{- if .Values.weightCache.enabled }}
{{- $_ := set $known "weight-cache" "/var/cache/lockstep" }}
{{- end }}
{{- if $gpus }}
{{- $_ := set $known "device" "cuda" }}
{{- $_ := set $known "tp-size" (mul $gpus $nodes) }}
{{- else }}
{{- /* A pod that asked for no GPU takes none, even where the node shows it all of them. */}}
{{- $_ := set $known "device" "cpu" }}
{{- if gt $nodes 1 }}
{{- $_ := set $known "tp-size" $nodes }}
{{- end }}
{{- end }}
{{- if gt $nodes 1 }}
{{- $_ := set $known "nnodes" $nodes }}
{{- end }}
{{- if .Values.gateway.enabled }}
{{- /* All clients come from the gateway's few addresses. */}}
{{- $_ := set $known "max-connections-per-peer" (index .Values.config "max-connections" | default 4096) }}
{{- if eq (include "lockstep.gatewayProtocol" .) "grpc" }}
{{- $_ := set $known "sglang-grpc-port" 8002 }}
{{- end }}
{{- end }}
{{- $config := deepCopy .Values.config }}
{{- if and .Values.ingress.enabled (not .Values.gateway.enabled) (eq (include "lockstep.key" .) "no") }}
{{- /* Without a key the server answers names alone that it knows for its own. */}}
{{- $hosts := list }}
{{- range .Values.ingress.hosts }}
{{- $hosts = append $hosts (trimPrefix "*" .) }}
{{- end }}
{{- $given := index $config "allowed-hosts" | default list }}
{{- if kindIs "string" $given }}
{{- $given = splitList "," $given }}
{{- end }}
{{- $_ := set $config "allowed-hosts" (concat $given $hosts | uniq) }}
{{- end }}
{{- toYaml (merge $config $known) }}
{{- end }}

{{/* One option of it, with what the program takes where it is not given. */}}
{{- define "lockstep.option" -}}
{{- $config := include "lockstep.config" .root | fromYaml }}
{{- if hasKey $config .key }}{{ index $config .key }}{{ else }}{{ .default }}{{ end }}
{{- end }}

{{- define "lockstep.port" -}}
{{ include "lockstep.option" (dict "root" . "key" "port" "default" 8000) }}
{{- end }}

{{/* 0 where the port is closed. */}}
{{- define "lockstep.grpcPort" -}}
{{ include "lockstep.option" (dict "root" . "key" "grpc-port" "default" (add1 (include "lockstep.port" . | int))) }}
{{- end }}

{{- define "lockstep.sglangPort" -}}
{{ include "lockstep.option" (dict "root" . "key" "sglang-grpc-port" "default" 0) }}
{{- end }}

{{/* From SIGTERM to the end of the drain. */}}
{{- define "lockstep.drain" -}}
{{- $limit := include "lockstep.option" (dict "root" . "key" "drain-timeout" "default" 30) | int }}
{{- add $limit (include "lockstep.option" (dict "root" . "key" "drain-delay" "default" 0) | int) }}
{{- end }}

{{- define "lockstep.key" -}}
{{- if or .Values.apiKey.existingSecret (index .Values.config "api-key-file") }}yes{{ else }}no{{ end }}
{{- end }}

{{/* A gateway shows its workers a key over HTTP alone. */}}
{{- define "lockstep.gatewayProtocol" -}}
{{- if eq (include "lockstep.key" .) "yes" }}http{{ else }}grpc{{ end }}
{{- end }}

{{/*
A value of the configuration file in TOML. JSON's texts are TOML's basic strings;
Helm has every number as a floating-point one.
*/}}
{{- define "lockstep.toml.value" -}}
{{- if kindIs "string" . }}{{ toJson . }}
{{- else if kindIs "bool" . }}{{ . }}
{{- else if kindIs "slice" . -}}
[{{ range $i, $item := . }}{{ if $i }}, {{ end }}{{ include "lockstep.toml.value" $item }}{{ end }}]
{{- else if eq (float64 .) (floor .) }}{{ int64 . }}
{{- else }}{{ toJson . }}
{{- end }}
{{- end }}

{{- define "lockstep.toml" -}}
{{- range $key, $value := include "lockstep.config" . | fromYaml }}
{{ $key }} = {{ include "lockstep.toml.value" $value }}
{{- end }}
{{- end }}

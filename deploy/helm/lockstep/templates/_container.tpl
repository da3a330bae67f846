{{- define "lockstep.container" -}}
{{- $root := .root }}
{{- $front := eq .role "front" }}
{{- with .root.Values }}
- name: lockstep
  image: {{ include "lockstep.image" $root }}
  imagePullPolicy: {{ .image.pullPolicy }}
  args:
    - serve
    - --config=/etc/lockstep/lockstep.toml
    # The image says these in its environment, which a file cannot overrule.
    - --host={{ include "lockstep.option" (dict "root" $root "key" "host" "default" "0.0.0.0") }}
    - --port={{ include "lockstep.port" $root }}
    - --grpc-port={{ include "lockstep.grpcPort" $root }}
    {{- if and $front .apiKey.existingSecret }}
    - --api-key-file=/etc/lockstep-keys/api-key
    {{- end }}
    {{- if and $front .adminApiKey.existingSecret }}
    - --admin-api-key-file=/etc/lockstep-keys/admin-api-key
    {{- end }}
    {{- if gt (int .nodes) 1 }}
    - --node-rank=$(LWS_WORKER_INDEX)
    - --dist-init-addr=$(LWS_LEADER_ADDRESS):{{ int .distPort }}
    - --dist-secret-file=/etc/lockstep-keys/dist-secret
    {{- end }}
    {{- range .extraArgs }}
    - {{ . | quote }}
    {{- end }}
  {{- with .extraEnv }}
  env:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .extraEnvFrom }}
  envFrom:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if $front }}
  ports:
    - name: http
      containerPort: {{ include "lockstep.port" $root }}
    {{- if include "lockstep.grpcPort" $root | int }}
    - name: grpc
      containerPort: {{ include "lockstep.grpcPort" $root }}
    {{- end }}
    {{- if include "lockstep.sglangPort" $root | int }}
    - name: sglang
      containerPort: {{ include "lockstep.sglangPort" $root }}
    {{- end }}
    {{- if gt (int .nodes) 1 }}
    - name: nodes
      containerPort: {{ int .distPort }}
    {{- end }}
  {{- include "lockstep.probes" $root | nindent 2 }}
  lifecycle:
    preStop:
      # Until nobody sends new requests here any more.
      exec:
        command: ["sleep", "{{ int .preStopSeconds }}"]
  {{- end }}
  resources:
    {{- include "lockstep.resources" $root | nindent 4 }}
  securityContext:
    {{- toYaml .securityContext | nindent 4 }}
  volumeMounts:
    - name: config
      mountPath: /etc/lockstep
      readOnly: true
    {{- if include "lockstep.keys" $ }}
    - name: keys
      mountPath: /etc/lockstep-keys
      readOnly: true
    {{- end }}
    {{- if include "lockstep.modelClaim" $root }}
    - name: model
      mountPath: /model
      readOnly: true
    {{- end }}
    {{- if .weightCache.enabled }}
    - name: weight-cache
      mountPath: /var/cache/lockstep
    {{- end }}
    - name: run
      mountPath: /run/lockstep
    - name: tmp
      mountPath: /tmp
    - name: shm
      mountPath: /dev/shm
    {{- with .extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}
{{- end }}

{{/*
/health may run a step first, within --health-timeout; the probes allow for it.
Reading the weights may take as long as --startup-timeout; only then do the
others count.
*/}}
{{- define "lockstep.probes" -}}
{{- $health := include "lockstep.option" (dict "root" . "key" "health-timeout" "default" 20) | int }}
{{- $start := include "lockstep.option" (dict "root" . "key" "startup-timeout" "default" 600) | int }}
{{- $ask := dict "httpGet" (dict "path" "/health" "port" "http") }}
{{- if index .Values.config "ssl-certfile" }}
{{- $ask = dict "httpGet" (dict "path" "/health" "port" "http" "scheme" "HTTPS") }}
{{- end }}
{{- if eq .Values.probes.kind "grpc" }}
{{- $ask = dict "grpc" (dict "port" (include "lockstep.grpcPort" . | int)) }}
{{- end }}
{{- $_ := set $ask "timeoutSeconds" (add $health 5) }}
{{- $period := int .Values.probes.startup.periodSeconds }}
{{- $startup := dict "failureThreshold" (add1 (div (add $start (sub $period 1)) $period)) }}
startupProbe:
  {{- toYaml (merge (deepCopy .Values.probes.startup) $startup $ask) | nindent 2 }}
readinessProbe:
  {{- toYaml (merge (deepCopy .Values.probes.readiness) $ask) | nindent 2 }}
livenessProbe:
  {{- toYaml (merge (deepCopy .Values.probes.liveness) $ask) | nindent 2 }}
{{- end }}

{{- define "lockstep.resources" -}}
{{- $resources := deepCopy .Values.resources }}
{{- if .Values.gpu.count }}
{{- $_ := set $resources "limits" (merge (default dict $resources.limits) (dict .Values.gpu.resource (int .Values.gpu.count))) }}
{{- end }}
{{- toYaml $resources }}
{{- end }}

{{/* Keys that a pod of this role reads, one a line. */}}
{{- define "lockstep.keys" -}}
{{- $front := eq .role "front" }}
{{- with .root.Values }}
{{- if and $front .apiKey.existingSecret }}
api-key
{{- end }}
{{- if and $front .adminApiKey.existingSecret }}
admin-api-key
{{- end }}
{{- if gt (int .nodes) 1 }}
dist-secret
{{- end }}
{{- end }}
{{- end }}

{{- define "lockstep.volumes" -}}
{{- $root := .root }}
{{- $keys := include "lockstep.keys" $ | trim }}
{{- with .root.Values }}
- name: config
  configMap:
    name: {{ include "lockstep.fullname" $root }}
{{- if $keys }}
- name: keys
  projected:
    defaultMode: 0440
    sources:
      {{- $secrets := dict "api-key" .apiKey "admin-api-key" .adminApiKey "dist-secret" .distSecret }}
      {{- range splitList "\n" $keys }}
      {{- $secret := index $secrets . }}
      - secret:
          name: {{ $secret.existingSecret }}
          items:
            - key: {{ $secret.key }}
              path: {{ . }}
      {{- end }}
{{- end }}
{{- with include "lockstep.modelClaim" $root }}
- name: model
  persistentVolumeClaim:
    claimName: {{ . }}
{{- end }}
{{- if .weightCache.enabled }}
- name: weight-cache
  {{- if .weightCache.existingClaim }}
  persistentVolumeClaim:
    claimName: {{ .weightCache.existingClaim }}
  {{- else }}
  emptyDir:
    {{- if .weightCache.sizeLimit }}
    sizeLimit: {{ .weightCache.sizeLimit }}
    {{- else }} {}
    {{- end }}
  {{- end }}
{{- end }}
- name: run
  emptyDir: {}
- name: tmp
  emptyDir: {}
# Where the ranks of a node exchange what they compute.
- name: shm
  emptyDir:
    medium: Memory
    sizeLimit: {{ .shm.sizeLimit }}
{{- with .extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- end }}

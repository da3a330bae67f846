{{/*
What no schema can say: values that contradict each other. Each error names
the remedy.
*/}}
{{- define "lockstep.validate" -}}
{{- $nodes := int .Values.nodes }}
{{- $gpus := int .Values.gpu.count }}
{{- range $key, $remedy := dict
    "nnodes" "set `nodes`"
    "node-rank" "each pod gets its own; leave it out"
    "dist-init-addr" "it is the leader's address; set `distPort` for another port"
    "dist-secret" "a ConfigMap is no place for it; put it into a Secret and name that in `distSecret.existingSecret`"
    "dist-secret-file" "name the Secret in `distSecret.existingSecret`"
    "api-key" "a ConfigMap is no place for it; put it into a Secret and name that in `apiKey.existingSecret`" }}
{{- if hasKey $.Values.config $key }}
{{- fail (printf "config.%s is the chart's own: %s" $key $remedy) }}
{{- end }}
{{- end }}
{{- range $key, $secret := dict "api-key-file" .Values.apiKey.existingSecret "admin-api-key-file" .Values.adminApiKey.existingSecret }}
{{- if and $secret (hasKey $.Values.config $key) }}
{{- fail (printf "config.%s and the Secret %s say the same key twice: leave one of them out" $key $secret) }}
{{- end }}
{{- end }}
{{- if gt $nodes 1 }}
{{- if not .Values.distSecret.existingSecret }}
{{- fail "nodes is more than 1, and nodes share a secret: make one with `kubectl create secret generic NAME --from-literal=dist-secret=$(openssl rand -hex 32)` and name it in `distSecret.existingSecret`" }}
{{- end }}
{{- if ne .Values.workload "Deployment" }}
{{- fail (printf "workload is %s, but several nodes are a LeaderWorkerSet: leave `workload` out, or set `nodes: 1`" .Values.workload) }}
{{- end }}
{{- if .Values.updateStrategy }}
{{- fail "updateStrategy is of Deployments and StatefulSets; with several nodes set `leaderWorkerSet.rolloutStrategy`" }}
{{- end }}
{{- if and .Values.model.create (has "ReadWriteOnce" .Values.model.accessModes) }}
{{- fail "model.create with the access mode ReadWriteOnce serves one node; with `nodes` above 1 give `model.accessModes: [ReadOnlyMany]` or [ReadWriteMany]" }}
{{- end }}
{{- end }}
{{- $ranks := include "lockstep.option" (dict "root" . "key" "tp-size" "default" 1) | int }}
{{- if mod $ranks $nodes }}
{{- fail (printf "config.tp-size is %d, which %d nodes do not divide: every node has as many ranks" $ranks $nodes) }}
{{- end }}
{{- $step := include "lockstep.option" (dict "root" . "key" "gpu-id-step" "default" 1) | int }}
{{- $device := include "lockstep.option" (dict "root" . "key" "device" "default" "cpu") }}
{{- if and $gpus (eq $device "cpu") }}
{{- fail (printf "gpu.count is %d and config.device `cpu`: leave one of them out" $gpus) }}
{{- end }}
{{- if and (eq $device "cuda") (not $gpus) }}
{{- fail "config.device is `cuda`: say with `gpu.count` how many each pod gets" }}
{{- end }}
{{- if and $gpus (eq $step 1) (not (hasKey .Values.config "base-gpu-id")) (ne (div $ranks $nodes) $gpus) }}
{{- fail (printf "config.tp-size is %d: on each of %d nodes %d ranks, each with a GPU of its own, but gpu.count is %d" $ranks $nodes (div $ranks $nodes) $gpus) }}
{{- end }}
{{- $drain := include "lockstep.drain" . | int }}
{{- $least := add $drain .Values.preStopSeconds }}
{{- if and (hasKey .Values "terminationGracePeriodSeconds") (le (int .Values.terminationGracePeriodSeconds) (int $least)) }}
{{- fail (printf "terminationGracePeriodSeconds is %d, but draining may take config.drain-delay + config.drain-timeout + preStopSeconds = %d: give more, or leave it out" (int .Values.terminationGracePeriodSeconds) (int $least)) }}
{{- end }}
{{- if eq (include "lockstep.port" . | int) 0 }}
{{- fail "config.port is 0, which is any free port: give the one that the service leads to" }}
{{- end }}
{{- if and (eq .Values.probes.kind "grpc") (eq (include "lockstep.grpcPort" . | int) 0) }}
{{- fail "probes.kind is `grpc`, but config.grpc-port 0 closes that port: give one of them another value" }}
{{- end }}
{{- if index .Values.config "ssl-certfile" }}
{{- if eq .Values.probes.kind "grpc" }}
{{- fail "probes.kind is `grpc`, which speaks no TLS, but config.ssl-certfile is given: probe by `http`" }}
{{- end }}
{{- if index .Values.config "ssl-ca-certs" }}
{{- fail "config.ssl-ca-certs: the kubelet's probes show no certificate, so no pod would be ready: ask for keys (apiKey), or let an ingress or mesh check certificates" }}
{{- end }}
{{- if .Values.gateway.enabled }}
{{- fail "gateway.enabled: the gateway speaks no TLS to its servers, but config.ssl-certfile is given: let an ingress in front of the gateway speak it" }}
{{- end }}
{{- if .Values.tests.enabled }}
{{- fail "tests.enabled: the test pods ask without TLS, but config.ssl-certfile is given: set tests.enabled to false" }}
{{- end }}
{{- end }}
{{- if and (eq .Values.autoscaling.kind "keda") (not .Values.autoscaling.keda.serverAddress) (not .Values.autoscaling.keda.triggers) }}
{{- fail "autoscaling.kind is `keda`: give `autoscaling.keda.serverAddress`, Prometheus' address, or triggers of your own" }}
{{- end }}
{{- if gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas) }}
{{- fail (printf "autoscaling.minReplicas %d is more than maxReplicas %d" (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) }}
{{- end }}
{{- if and .Values.gateway.enabled (not .Values.gateway.image.tag) }}
{{- fail "gateway.image.tag: name the version to run; smg 1.13.0 was tried" }}
{{- end }}
{{- if and .Values.gateway.enabled (eq (include "lockstep.gatewayProtocol" .) "http") (not .Values.apiKey.existingSecret) }}
{{- fail "the gateway needs the servers' key too: put it into a Secret and name that in `apiKey.existingSecret` instead of config.api-key-file" }}
{{- end }}
{{- if and .Values.inferencePool.enabled (not .Values.inferencePool.endpointPicker.name) }}
{{- fail "inferencePool.endpointPicker.name: the service of the endpoint picker that is installed" }}
{{- end }}
{{- end }}

"""What the parts of the chart say to each other."""

from __future__ import annotations

import chart


def values(name: str) -> chart.Rendered:
    return chart.rendered(chart.HERE / "values" / "valid" / f"{name}.yaml")


def test_nodes_of_a_group_meet_and_end_together():
    rendered = values("nodes")
    group = rendered.one("LeaderWorkerSet")
    template = group["spec"]["leaderWorkerTemplate"]
    assert template["size"] == 4
    assert template["restartPolicy"] == "RecreateGroupOnPodRestart"
    assert group["spec"]["startupPolicy"] == "LeaderCreated"
    # The controller's service has the set's name.
    assert group["metadata"]["name"] not in [s["metadata"]["name"] for s in rendered.of("Service")]
    leader, worker = map(chart.server, rendered.servers())
    for node in (leader, worker):
        assert "--node-rank=$(LWS_WORKER_INDEX)" in node["args"]
        assert "--dist-init-addr=$(LWS_LEADER_ADDRESS):5000" in node["args"]
        assert "--dist-secret-file=/etc/lockstep-keys/dist-secret" in node["args"]
    assert rendered.toml()["nnodes"] == 4 and rendered.toml()["tp-size"] == 4


def test_leader_and_workers_differ_in_what_is_public_alone():
    leader, worker = values("nodes").servers()
    front, back = chart.server(leader), chart.server(worker)
    public = {"ports", "startupProbe", "readinessProbe", "livenessProbe", "lifecycle", "args"}
    differ = {key for key in front.keys() | back.keys() if front.get(key) != back.get(key)}
    assert differ == public
    only = set(front["args"]) - set(back["args"])
    assert only == {"--api-key-file=/etc/lockstep-keys/api-key"}
    for pod, keys in ((leader, ["api-key", "dist-secret"]), (worker, ["dist-secret"])):
        secrets = next(v for v in pod["spec"]["volumes"] if v["name"] == "keys")
        paths = [s["secret"]["items"][0]["path"] for s in secrets["projected"]["sources"]]
        assert paths == keys
    rest = [
        {key: value for key, value in pod["spec"].items() if key not in ("containers", "volumes")}
        for pod in (leader, worker)
    ]
    assert rest[0] == rest[1]


def test_a_group_waits_for_the_leaders_name():
    for pod in values("nodes").servers():
        first = pod["spec"]["initContainers"][0]
        assert "getent hosts \"$LWS_LEADER_ADDRESS\"" in first["command"][-1]


def test_ranks_of_a_group_reach_each_other_and_nobody_else_them():
    policy = values("nodes").one("NetworkPolicy")
    everywhere = [rule for rule in policy["spec"]["ingress"] if "ports" not in rule]
    assert len(everywhere) == 1
    peer = everywhere[0]["from"][0]["podSelector"]["matchLabels"]
    assert peer["app.kubernetes.io/component"] == "server"


def test_data_parallel_attention_is_passed_through():
    options = values("nodes-gpu").toml()
    assert options["enable-dp-attention"] is True and options["dp-size"] == 4
    assert options["tp-size"] == 16 and options["device"] == "cuda" and options["nnodes"] == 2


def test_a_pod_that_asked_for_no_gpu_takes_none_even_where_it_sees_some():
    assert values("default").toml()["device"] == "cpu" and values("nodes").toml()["device"] == "cpu"
    assert values("gpu").toml()["device"] == "cuda"


def test_gpus_are_asked_for_and_tolerated():
    for pod in values("nodes-gpu").servers():
        assert chart.server(pod)["resources"]["limits"]["nvidia.com/gpu"] == 8
        assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["spec"][
            "tolerations"
        ]
        assert pod["spec"]["runtimeClassName"] == "nvidia"


def test_ranks_get_their_shared_memory():
    (pod,) = values("gpu").servers()
    shm = next(volume for volume in pod["spec"]["volumes"] if volume["name"] == "shm")
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}
    mounts = chart.server(pod)["volumeMounts"]
    assert {"name": "shm", "mountPath": "/dev/shm"} in mounts


def test_the_model_is_read_from_its_claim():
    rendered = values("model-created")
    claim = rendered.one("PersistentVolumeClaim")
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    (pod,) = rendered.servers()
    model = next(volume for volume in pod["spec"]["volumes"] if volume["name"] == "model")
    assert model["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    mount = next(one for one in chart.server(pod)["volumeMounts"] if one["name"] == "model")
    assert mount["readOnly"] and rendered.toml()["model-path"] == f"{mount['mountPath']}/qwen"


def test_probes_ask_over_grpc():
    (pod,) = values("grpc-probes").servers()
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert chart.server(pod)[name]["grpc"] == {"port": 9001}
        assert "httpGet" not in chart.server(pod)[name]


def test_probes_and_prometheus_speak_tls_where_the_server_does():
    rendered = values("tls")
    (pod,) = rendered.servers()
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert chart.server(pod)[name]["httpGet"]["scheme"] == "HTTPS"
    (endpoint,) = rendered.one("ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["scheme"] == "https"


def test_probes_allow_half_an_hour_by_default():
    start = chart.server(values("default").servers()[0])["startupProbe"]
    assert start["failureThreshold"] * start["periodSeconds"] == 1810


def test_the_gateway_finds_servers_over_grpc_without_a_key():
    rendered = values("gateway")
    gateway = rendered.one("Deployment", "demo-lockstep-gateway")
    args = gateway["spec"]["template"]["spec"]["containers"][0]["args"]
    port = rendered.toml()["sglang-grpc-port"]
    assert f"--service-discovery-port={port}" in args and "--policy=cache_aware" in args
    wanted = dict(one.split("=", 1) for one in args[args.index("--selector") + 1 :])
    (pod,) = rendered.servers()
    assert wanted.items() <= pod["metadata"]["labels"].items()
    ports = {one["name"]: one["containerPort"] for one in chart.server(pod)["ports"]}
    assert ports["sglang"] == port
    role = rendered.one("Role")
    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    ]
    assert rendered.toml()["max-connections-per-peer"] == 4096


def test_the_gateway_shows_the_key_over_http():
    rendered = values("gateway-keys")
    gateway = rendered.one("Deployment", "demo-lockstep-gateway")
    container = gateway["spec"]["template"]["spec"]["containers"][0]
    assert "--service-discovery-port=8000" in container["args"]
    assert "--api-key=$(LOCKSTEP_API_KEY)" in container["args"]
    key = next(one for one in container["env"] if one["name"] == "LOCKSTEP_API_KEY")
    assert key["valueFrom"]["secretKeyRef"] == {"name": "keys", "key": "api-key"}
    assert "sglang-grpc-port" not in rendered.toml()


def test_autoscalers_count_queued_requests():
    hpa = values("hpa").one("HorizontalPodAutoscaler")["spec"]
    assert hpa["metrics"][0]["pods"]["metric"]["name"] == "lockstep_num_requests_waiting"
    assert hpa["scaleTargetRef"]["kind"] == "LeaderWorkerSet"
    keda = values("keda").one("ScaledObject")["spec"]
    assert "sum(lockstep_num_requests_waiting{" in keda["triggers"][0]["metadata"]["query"]
    for name in ("hpa", "keda"):
        assert "replicas" not in values(name).workload()["spec"]
        reference = values(name).workload()
        target = (hpa if name == "hpa" else keda)["scaleTargetRef"]
        assert target["name"] == reference["metadata"]["name"]
        assert target["apiVersion"] == reference["apiVersion"]


def test_prometheus_shows_the_key():
    endpoint = values("monitoring").one("ServiceMonitor")["spec"]["endpoints"][0]
    assert endpoint["authorization"]["credentials"] == {"name": "keys", "key": "token"}


def test_a_changed_option_starts_pods_anew():
    def checksum(config: dict) -> str:
        pod = chart.render({"config": config}).servers()[0]
        return pod["metadata"]["annotations"]["checksum/config"]

    assert checksum({}) == checksum({})
    assert checksum({}) != checksum({"max-running-requests": 8})


def test_the_shown_images_ports_are_overruled():
    args = chart.server(values("grpc-probes").servers()[0])["args"]
    assert {"--host=0.0.0.0", "--port=9000", "--grpc-port=9001"} <= set(args)


def test_hosts_of_the_ingress_are_names_of_the_server_where_it_has_no_key():
    values = {"ingress": {"enabled": True, "hosts": ["llm.example.com", "*.llm.example.com"]}}
    values["config"] = {"allowed-hosts": ["own.example.com"]}
    hosts = ["own.example.com", "llm.example.com", ".llm.example.com"]
    assert chart.render(values).toml()["allowed-hosts"] == hosts
    # With one it asks for the key instead, and behind a gateway it has other names.
    values["apiKey"] = {"existingSecret": "keys"}
    assert chart.render(values).toml()["allowed-hosts"] == hosts[:1]


def test_a_pool_selects_leaders():
    pool = values("inference-pool").one("InferencePool")["spec"]
    labels = pool["selector"]["matchLabels"]
    assert labels["leaderworkerset.sigs.k8s.io/worker-index"] == "0"
    assert pool["targetPorts"] == [{"number": 8000}]


def test_long_names_leave_room_for_controllers():
    release = "a-release-with-a-name-that-is-as-long-as-helm-allows-xy"[:53]
    rendered = chart.render({"nodes": 2, "distSecret": {"existingSecret": "s"}}, release)
    name = rendered.one("LeaderWorkerSet")["metadata"]["name"]
    # Groups, pods of groups, and a revision's hash in a label.
    assert len(f"{name}-99-1023") <= 63 and len(f"{name}-99") + 11 <= 63

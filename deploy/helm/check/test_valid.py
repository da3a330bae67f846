"""Sets of values that a cluster would take: whatever they ask for, this holds."""

from __future__ import annotations

import re

import chart
import objects
import pytest
import helm_python

SETS = chart.sets("valid")
VALID = pytest.mark.parametrize("path", SETS, ids=lambda path: path.stem)
LABEL = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def test_there_are_sets():
    assert len(SETS) >= 15


@VALID
def test_each_object_is_valid(path):
    rendered = chart.rendered(path)
    assert {one["kind"] for one in rendered.objects} >= {"Service", "ConfigMap"}
    wrong = [
        f"{one['kind']} {one['metadata']['name']}: {problem}"
        for one in rendered.objects
        for problem in objects.problems(one)
    ]
    assert not wrong, "\n".join(wrong)


@VALID
def test_helm_has_no_complaint(path):
    found = helm_python.lint(chart.CHART, values=chart.read(path), namespace=chart.NAMESPACE)
    messages = [one for one in found["messages"] if one["severity"] in ("WARNING", "ERROR")]
    assert not messages


@VALID
def test_names_and_labels_fit(path):
    rendered = chart.rendered(path)
    names = [(one["kind"], one["metadata"]["name"]) for one in rendered.objects]
    assert len(names) == len(set(names)), "a name twice"
    for kind, name in names:
        assert NAME.fullmatch(name) and len(name) <= 63, (kind, name)
    for one in rendered.objects:
        for key, value in one["metadata"].get("labels", {}).items():
            assert LABEL.fullmatch(value) and len(value) <= 63, (one["kind"], key, value)


@VALID
def test_selectors_find_pods(path):
    """Services, budgets and policies are of nothing where a label is wrong."""
    rendered = chart.rendered(path)
    labels = [pod["metadata"]["labels"] for _, pod in rendered.pods()]
    selectors = []
    for one in rendered.objects:
        spec = one.get("spec", {})
        if one["kind"] == "Service":
            selectors.append((one, spec["selector"]))
        for key in ("selector", "podSelector"):
            if "matchLabels" in spec.get(key, {}) and one["kind"] != "ServiceMonitor":
                selectors.append((one, spec[key]["matchLabels"]))
        for rule in spec.get("ingress", []) if one["kind"] == "NetworkPolicy" else []:
            peers = [peer["podSelector"] for peer in rule.get("from", []) if "podSelector" in peer]
            ours = "app.kubernetes.io/name"
            selectors += [(one, p["matchLabels"]) for p in peers if ours in p.get("matchLabels", {})]
    for one, selector in selectors:
        found = [some for some in labels if selector.items() <= some.items()]
        assert found, f"{one['kind']} {one['metadata']['name']} selects no pod: {selector}"
    for monitor in rendered.of("ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"]
        services = [
            one for one in rendered.of("Service") if wanted.items() <= one["metadata"]["labels"].items()
        ]
        ports = [port["name"] for port in services[0]["spec"]["ports"]]
        assert len(services) == 1 and monitor["spec"]["endpoints"][0]["port"] in ports


@VALID
def test_services_send_to_public_ports_of_the_first_node_alone(path):
    rendered = chart.rendered(path)
    for service in rendered.of("Service"):
        selector = service["spec"]["selector"]
        for name, pod in rendered.pods():
            if not selector.items() <= pod["metadata"]["labels"].items():
                continue
            assert not name.endswith("worker"), service["metadata"]["name"]
            containers = pod["spec"]["containers"]
            ports = {port["name"] for one in containers for port in one.get("ports", [])}
            for port in service["spec"]["ports"]:
                assert port["targetPort"] in ports, (name, port)
                assert port["targetPort"] not in ("sglang", "nodes"), "internal"


@VALID
def test_what_is_mounted_is_there(path):
    rendered = chart.rendered(path)
    made = {(one["kind"], one["metadata"]["name"]) for one in rendered.objects}
    # What the set says is in the cluster already.
    given = str(rendered.values)
    for name, pod in rendered.pods():
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
        containers = pod["spec"]["containers"] + pod["spec"].get("initContainers", [])
        mounts = [mount for one in containers for mount in one.get("volumeMounts", [])]
        assert {mount["name"] for mount in mounts} <= volumes.keys(), name
        for container in containers:
            places = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
            assert len(places) == len(set(places)), (name, places)
        for volume in volumes.values():
            config = volume.get("configMap", {}).get("name")
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            assert not config or ("ConfigMap", config) in made or config in given
            assert not claim or ("PersistentVolumeClaim", claim) in made or f"'{claim}'" in given
        account = pod["spec"].get("serviceAccountName")
        assert account is None or ("ServiceAccount", account) in made or f"'{account}'" in given


@VALID
def test_pods_keep_to_the_restricted_standard(path):
    """Kubernetes' `restricted` Pod Security Standard, which namespaces enforce."""
    for name, pod in chart.rendered(path).pods():
        spec = pod["spec"]
        context = spec["securityContext"]
        assert context["runAsNonRoot"] and context["runAsUser"], name
        assert context["seccompProfile"]["type"] in ("RuntimeDefault", "Localhost"), name
        assert not any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")), name
        kinds = {key for volume in spec.get("volumes", []) for key in volume if key != "name"}
        allowed = {"configMap", "emptyDir", "persistentVolumeClaim", "projected", "secret"}
        assert kinds <= allowed, name
        for container in spec["containers"] + spec.get("initContainers", []):
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False, (name, container["name"])
            assert own["capabilities"]["drop"] == ["ALL"], (name, container["name"])
            assert own["readOnlyRootFilesystem"] is True, (name, container["name"])
        gateway = pod["metadata"]["labels"].get("app.kubernetes.io/component") == "gateway"
        assert spec.get("automountServiceAccountToken") is gateway, name


@VALID
def test_the_file_says_what_config_says(path):
    rendered = chart.rendered(path)
    given = rendered.values["config"]
    said = {key: value for key, value in given.items() if key != "allowed-hosts"}
    assert said.items() <= rendered.toml().items()
    assert set(given.get("allowed-hosts", [])) <= set(rendered.toml().get("allowed-hosts", []))
    for secret in ("api-key", "dist-secret", "node-rank", "dist-init-addr"):
        assert secret not in rendered.toml()


@VALID
def test_a_pod_has_time_to_drain_and_to_start(path):
    rendered = chart.rendered(path)
    options = rendered.toml()
    for pod in rendered.servers():
        grace = pod["spec"]["terminationGracePeriodSeconds"]
        drain = options.get("drain-delay", 0) + options.get("drain-timeout", 30)
        assert grace > drain + rendered.values["preStopSeconds"]
    probes = chart.server(rendered.servers()[0])
    start = probes["startupProbe"]
    assert start["failureThreshold"] * start["periodSeconds"] > options["startup-timeout"]
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert probes[name]["timeoutSeconds"] > options.get("health-timeout", 20), name


@VALID
def test_internal_ports_are_closed(path):
    """Everybody may come to public ports at most, where there is a policy."""
    rendered = chart.rendered(path)
    if not rendered.values["networkPolicy"]["enabled"]:
        assert not rendered.of("NetworkPolicy")
        return
    options = rendered.toml()
    public = {options.get("port", 8000), options.get("grpc-port", 8001)} - {0}
    policy = rendered.one("NetworkPolicy", rendered.one("NetworkPolicy", None)["metadata"]["name"]) \
        if not rendered.values["gateway"]["enabled"] else rendered.of("NetworkPolicy")[0]
    for _, pod in rendered.pods():
        if pod["metadata"]["labels"].get("app.kubernetes.io/component") == "server":
            chosen = policy["spec"]["podSelector"]["matchLabels"]
            assert chosen.items() <= pod["metadata"]["labels"].items()
    extra = rendered.values["networkPolicy"]["extraIngress"]
    for rule in policy["spec"]["ingress"]:
        ports = {port["port"] for port in rule.get("ports", [])}
        if rule in extra or ports and ports <= public:
            continue
        for peer in rule["from"]:
            wanted = peer["podSelector"]["matchLabels"]
            assert wanted["app.kubernetes.io/instance"] == chart.RELEASE
            assert wanted["app.kubernetes.io/component"] in ("server", "gateway")


@VALID
def test_the_notes_say_how_to_ask(path):
    notes = chart.rendered(path).notes
    assert "/v1/chat/completions" in notes and "port-forward service/" in notes
    assert "<no value>" not in notes and "%!" not in notes

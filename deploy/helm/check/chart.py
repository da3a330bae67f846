"""The chart, rendered by Helm itself with sets of values."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
import tomllib

import helm_python
import yaml

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
CHART = HERE.parent / "lockstep"
RELEASE = "demo"
NAMESPACE = "llm"


class SetError(Exception):
    """What a set of values is refused with."""


@dataclasses.dataclass
class Rendered:
    """What Helm would send to a cluster, and say to whoever installs it."""

    values: dict
    objects: list[dict]
    notes: str

    def of(self, kind: str) -> list[dict]:
        return [one for one in self.objects if one["kind"] == kind]

    def one(self, kind: str, name: str | None = None) -> dict:
        found = [one for one in self.of(kind) if name in (None, one["metadata"]["name"])]
        names = [one["metadata"]["name"] for one in self.of(kind)]
        assert len(found) == 1, f"{kind} {name or ''}: {names}"
        return found[0]

    def workload(self) -> dict:
        """What runs the servers."""
        kinds = ("Deployment", "StatefulSet", "LeaderWorkerSet")
        found = [
            one
            for one in self.objects
            if one["kind"] in kinds
            and one["metadata"]["labels"].get("app.kubernetes.io/component") == "server"
        ]
        assert len(found) == 1, found
        return found[0]

    def pods(self) -> list[tuple[str, dict]]:
        """Every pod template and pod, with what it belongs to."""
        pods = []
        for one in self.objects:
            name = f"{one['kind']} {one['metadata']['name']}"
            if one["kind"] == "Pod":
                pods.append((name, {"metadata": one["metadata"], "spec": one["spec"]}))
            elif one["kind"] == "LeaderWorkerSet":
                template = one["spec"]["leaderWorkerTemplate"]
                leader = labelled(template["leaderTemplate"], "0", one)
                worker = labelled(template["workerTemplate"], "1", one)
                pods += [(f"{name}, leader", leader), (f"{name}, worker", worker)]
            elif "template" in one.get("spec", {}):
                pods.append((name, one["spec"]["template"]))
        return pods

    def servers(self) -> list[dict]:
        """Pod templates of servers: of several nodes the leader's and a worker's."""
        labels = "app.kubernetes.io/component"
        return [pod for _, pod in self.pods() if pod["metadata"]["labels"].get(labels) == "server"]

    def toml(self) -> dict:
        """The file of options, as TOML's own parser reads it."""
        name = self.servers()[0]["spec"]["volumes"][0]["configMap"]["name"]
        return tomllib.loads(self.one("ConfigMap", name)["data"]["lockstep.toml"])


def labelled(template: dict, index: str, one: dict) -> dict:
    """A template of a group with the labels that its controller adds."""
    prefix = "leaderworkerset.sigs.k8s.io"
    added = {f"{prefix}/worker-index": index, f"{prefix}/name": one["metadata"]["name"]}
    metadata = template["metadata"] | {"labels": template["metadata"]["labels"] | added}
    return template | {"metadata": metadata}


def server(pod: dict) -> dict:
    """The server's container of a pod."""
    return next(one for one in pod["spec"]["containers"] if one["name"] == "lockstep")


@functools.cache
def loaded() -> helm_python.Chart:
    return helm_python.Chart.load(CHART)


def render(values: dict, release: str = RELEASE) -> Rendered:
    """Renders the chart as an installation would, the schema first."""
    chart = loaded()
    try:
        chart.validate_schema(values)
        files = chart.render(values, name=release, namespace=NAMESPACE)
    except helm_python.HelmError as error:
        raise SetError(str(error)) from None
    notes = next(text for name, text in files.items() if name.endswith("NOTES.txt"))
    texts = [text for name, text in sorted(files.items()) if name.endswith(".yaml")]
    objects = [one for text in texts for one in yaml.load_all(text, UniqueKeys) if one]
    return Rendered(chart.merge_values(values), objects, notes)


class UniqueKeys(yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader):
    """YAML's loader takes the last of two equal keys; a cluster may not."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise SetError(f"{sorted(twice)} twice in one mapping, line {node.start_mark.line}")
        return super().construct_mapping(node, deep)


def sets(kind: str) -> list[pathlib.Path]:
    """Files of sets of values, `valid` or `refused`."""
    return sorted((HERE / "values" / kind).glob("*.yaml"))


def read(path: pathlib.Path) -> dict:
    return yaml.safe_load(path.read_text()) or {}


@functools.cache
def rendered(path: pathlib.Path) -> Rendered:
    return render(read(path))


def updating() -> bool:
    """Whether files that are held are to be written anew."""
    return os.environ.get("UPDATE_EXPECT") == "1"

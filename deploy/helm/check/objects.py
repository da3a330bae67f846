"""Whether an object is what a cluster would accept."""

from __future__ import annotations

import functools

import jsonschema
import kubernetes_validate.utils
import yaml
from chart import HERE

# The oldest that Chart.yaml allows, and newer ones.
KUBERNETES = ("1.27", "1.31", "1.37")

# Definitions of a version are megabytes; they are read once.
kubernetes_validate.utils.schema_contents = functools.cache(
    kubernetes_validate.utils.schema_contents
)


@functools.cache
def custom() -> dict[tuple[str, str], jsonschema.Draft7Validator]:
    """Schemas of kinds that Kubernetes itself does not know."""
    schemas = {}
    for path in sorted((HERE / "schemas").glob("*.yaml")):
        schema = yaml.safe_load(path.read_text())
        jsonschema.Draft7Validator.check_schema(schema)
        kind = tuple(schema["properties"][key]["const"] for key in ("apiVersion", "kind"))
        schemas[kind] = jsonschema.Draft7Validator(schema)
    return schemas


def problems(one: dict) -> list[str]:
    """What is wrong with an object, in any of the versions."""
    found = []
    validator = custom().get((one["apiVersion"], one["kind"]))
    if validator:
        found += [f"{error.json_path}: {error.message}" for error in validator.iter_errors(one)]
    for part in parts(one) if validator else [one]:
        for version in KUBERNETES:
            try:
                kubernetes_validate.utils.validate(part, version, strict=True)
            except jsonschema.ValidationError as error:
                where = ".".join(str(step) for step in error.absolute_path)
                found.append(f"{version}: {where}: {error.message[:400]}")
            except kubernetes_validate.utils.SchemaNotFoundError:
                found.append(f"{version}: nothing is known of {one['apiVersion']} {one['kind']}")
    return found


def parts(one: dict) -> list[dict]:
    """What of a custom object is Kubernetes' own: its metadata and pods."""
    named = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": one["metadata"]}
    templates = one["spec"].get("leaderWorkerTemplate", {})
    pods = [templates[key] for key in ("leaderTemplate", "workerTemplate") if key in templates]
    return [named] + [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "pods"},
            "spec": {"selector": {"matchLabels": {}}, "template": pod},
        }
        for pod in pods
    ]

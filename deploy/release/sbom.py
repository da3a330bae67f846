#!/usr/bin/env python3
"""Writes the software bill of materials of the program: CycloneDX 1.5, as JSON.

usage: sbom.py VERSION FILE

It lists every crate that is linked into `lockstep` on this machine's target, with licence and
checksum, as `cargo metadata` and Cargo.lock tell, and which crate needs which.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def metadata() -> dict:
    host = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    target = next(line.split()[1] for line in host.splitlines() if line.startswith("host:"))
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target]
    told = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    return json.loads(told.stdout)


def checksums() -> dict:
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    return {(crate["name"], crate["version"]): crate.get("checksum") for crate in lock["package"]}


def linked(nodes: dict, first: str) -> dict:
    """What is reached without dependencies of tests and of build scripts."""
    needs: dict = {}
    waiting = [first]
    while waiting:
        node = waiting.pop()
        if node in needs:
            continue
        is_normal = lambda way: any(kind["kind"] is None for kind in way["dep_kinds"])
        needs[node] = sorted(way["pkg"] for way in nodes[node]["deps"] if is_normal(way))
        waiting.extend(needs[node])
    return needs


def component(crate: dict, checksum: str | None) -> dict:
    purl = f"pkg:cargo/{crate['name']}@{crate['version']}"
    entry = {
        "type": "library",
        "bom-ref": purl,
        "name": crate["name"],
        "version": crate["version"],
        "purl": purl,
    }
    if crate.get("license"):
        entry["licenses"] = [{"expression": re.sub(r"\s*/\s*", " OR ", crate["license"])}]
    if checksum:
        entry["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return entry


def bill(version: str) -> dict:
    told = metadata()
    crates = {crate["id"]: crate for crate in told["packages"]}
    first = next(crate["id"] for crate in told["packages"] if crate["name"] == "lockstep")
    needs = linked({node["id"]: node for node in told["resolve"]["nodes"]}, first)
    known = checksums()
    parts = {
        node: component(crates[node], known.get((crates[node]["name"], crates[node]["version"])))
        for node in needs
    }
    program = parts.pop(first)
    program |= {"type": "application", "version": version}
    reference = {node: part["bom-ref"] for node, part in parts.items()} | {
        first: program["bom-ref"]
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": program},
        "components": sorted(parts.values(), key=lambda part: part["bom-ref"]),
        "dependencies": sorted(
            (
                {"ref": reference[node], "dependsOn": sorted(reference[to] for to in needs[node])}
                for node in needs
            ),
            key=lambda entry: entry["ref"],
        ),
    }


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    text = json.dumps(bill(sys.argv[1]), indent=1)
    Path(sys.argv[2]).write_text(text + "\n")

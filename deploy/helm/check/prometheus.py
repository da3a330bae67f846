"""A real Prometheus that watches a server on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import subprocess
import time
import urllib.parse
import urllib.request

import chart
import machine
import yaml

PROGRAM = os.environ.get("PROMETHEUS_BINARY", "")
# What rules wait for and look back on, so that a test need not take minutes.
SHORT = "15s"


def hurried() -> dict:
    """The alerts, with every duration shortened and no time to wait before they fire."""
    rules = yaml.safe_load((chart.CHART / "files" / "alerts.yaml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule.pop("for", None)
            # An hour stays: what served within it.
            rule["expr"] = re.sub(r"\[\d+m\]", f"[{SHORT}]", rule["expr"])
    return rules


class Prometheus:
    """Scrapes once a second; a context."""

    def __init__(self, target: int, folder: pathlib.Path):
        (self.port,) = machine.free_ports(1)
        self.folder = folder
        (folder / "alerts.json").write_text(json.dumps(hurried()))
        job = {"job_name": "lockstep", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}
        every = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        config = {"global": every, "scrape_configs": [job], "rule_files": ["alerts.json"]}
        (folder / "prometheus.yml").write_text(json.dumps(config))

    def __enter__(self):
        self.log = open(self.folder / "prometheus.log", "w")
        self.process = subprocess.Popen(
            [
                PROGRAM,
                f"--config.file={self.folder}/prometheus.yml",
                f"--storage.tsdb.path={self.folder}/data",
                f"--web.listen-address=127.0.0.1:{self.port}",
            ],
            stdout=self.log,
            stderr=self.log,
        )
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(machine.PATIENCE)
        self.log.close()

    def get(self, path: str, **query: str) -> dict:
        """The data of an answer of its API; errors have a reason in their body."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{query}: {error.read().decode()}") from None

    def values(self, query: str) -> list[float]:
        """The numbers that a query has now."""
        numbers = [float(one["value"][1]) for one in self.get("query", query=query)["result"]]
        return [number for number in numbers if number == number]

    def rules(self) -> list[dict]:
        return [rule for group in self.get("rules")["groups"] for rule in group["rules"]]

    def firing(self) -> set[str]:
        return {rule["name"] for rule in self.rules() if rule["state"] == "firing"}


def until(met, what: str):
    """Waits for a condition; says what is missing when it does not come."""
    deadline = time.monotonic() + machine.PATIENCE
    missing = None
    while time.monotonic() < deadline:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            missing = met()
            if not missing:
                return
        time.sleep(0.2)
    raise AssertionError(f"{what}: {missing}")

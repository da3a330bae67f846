"""The image of deploy/Containerfile without an engine that builds images: the commands of its
last stage in a bare root file system of the same Debian."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess

import chart
import machine

FILE = chart.ROOT / "deploy" / "Containerfile"
DEBOOTSTRAP = os.environ.get("DEBOOTSTRAP", "")
# With a root of its own, since mounts of this machine are none of its business.
ENTER = """
mount --rbind /proc "$1/proc"
mount -t tmpfs -o mode=1777 shm "$1/dev/shm"
exec chroot --userspec="$2" "$1" "${@:3}"
"""


@dataclasses.dataclass
class Stage:
    """One stage of the file: its base, and instructions with their arguments."""

    base: str
    steps: list[tuple[str, str]]

    def of(self, instruction: str) -> list[str]:
        return [rest for name, rest in self.steps if name == instruction]

    def environment(self) -> dict[str, str]:
        return dict(one.split("=", 1) for line in self.of("ENV") for one in shlex.split(line))


def stages() -> list[Stage]:
    text = re.sub(r"^#.*\n", "", FILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    found: list[Stage] = []
    for line in filter(None, text.splitlines()):
        name, rest = line.split(maxsplit=1)
        if name == "FROM":
            found.append(Stage(rest, []))
        else:
            found[-1].steps.append((name, rest))
    return found


class Root:
    """A root file system with the last stage's steps done."""

    def __init__(self, base: pathlib.Path, folder: pathlib.Path):
        self.folder = folder / "root"
        subprocess.run(["cp", "--archive", base, self.folder], check=True)
        # What engines put there.
        (self.folder / "etc" / "hosts").write_text("127.0.0.1 localhost\n")
        self.stage = stages()[-1]
        self.user = "0:0"
        for name, rest in self.stage.steps:
            match name:
                case "RUN":
                    self.run(["sh", "-c", rest], check=True)
                case "COPY":
                    self.copy(shlex.split(rest))
                case "USER":
                    self.user = rest

    def copy(self, words: list[str]):
        options = [word for word in words if word.startswith("--")]
        source, target = [word for word in words if not word.startswith("--")]
        built = "--from=build" in options
        source = machine.BINARY if built else chart.ROOT / source
        target = self.folder / target.strip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
        for option in options:
            if option.startswith("--chmod="):
                target.chmod(int(option.removeprefix("--chmod="), 8))

    def command(self, words: list[str], environment: dict[str, str]) -> list[str]:
        """What runs a command inside, as the stage's user and with its environment."""
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        given = {"PATH": path} | self.stage.environment() | environment
        inside = ["env", "--ignore-environment", *(f"{k}={v}" for k, v in given.items()), *words]
        mine = ["unshare", "--mount", "--propagation", "private", "bash", "-ec", ENTER, "enter"]
        return [*mine, str(self.folder), self.user, *inside]

    def run(self, words: list[str], check: bool = False, **environment: str):
        command = self.command(words, environment)
        return subprocess.run(command, check=check, capture_output=True, text=True)

    @contextlib.contextmanager
    def running(self, log: pathlib.Path, **environment: str):
        """The image's own program; ended however the test ends."""
        words = json.loads(self.stage.of("ENTRYPOINT")[0]) + json.loads(self.stage.of("CMD")[0])
        with open(log, "w") as file:
            command = self.command(words, environment)
            process = subprocess.Popen(command, stdout=file, stderr=file)
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.terminate()
                process.wait(machine.PATIENCE)

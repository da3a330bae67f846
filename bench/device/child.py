"""A child process with a deadline, whose figures are taken while it runs."""

import json
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Callable

# Seconds between looks at a child, and between a signal and the next.
LOOK = 0.1
GRACE = 3.0


def objects(text: str) -> list[dict]:
    """The JSON objects among the lines of a text; a cut last line is none yet."""
    found = []
    for line in text.splitlines(keepends=True):
        if line.endswith("\n") and line.startswith("{"):
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                continue
    return found


class Tail:
    """What has been appended to a file since the last look, in whole lines."""

    def __init__(self, path: pathlib.Path):
        self.path = path
        self.at = path.stat().st_size if path.exists() else 0

    def new(self) -> list[dict]:
        """The objects of new whole lines."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self.at)
            data = file.read()
        end = data.rfind(b"\n") + 1
        self.at += end
        return objects(data[:end].decode(errors="replace"))


def end(child: subprocess.Popen) -> bool:
    """End a child and its group: first kindly, then not. False if the system can't end it, as with a driver that hangs."""
    for what in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, what)
        except ProcessLookupError:
            pass
        try:
            child.wait(GRACE)
            if what == signal.SIGTERM:
                continue
            return True
        except subprocess.TimeoutExpired:
            continue
    return False


def run(
    command: list[str],
    seconds: float,
    log: pathlib.Path,
    figures: pathlib.Path,
    take: Callable[[dict], None],
    environment: dict[str, str],
) -> str | None:
    """Run a command for so many seconds at the most, and hand each object that it appends to `figures` to `take`.

    Returns why it failed, in one line, or None. Its output goes to `log`; `figures` may be the same file.
    """
    tail = Tail(figures)
    with log.open("wb") as output:
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | environment,
                start_new_session=True,
            )
        except OSError as error:
            return f"could not be started: {error}"
    until = time.monotonic() + seconds
    why = None
    try:
        while child.poll() is None and why is None:
            time.sleep(LOOK)
            for figure in tail.new():
                take(figure)
            if time.monotonic() > until:
                why = f"was ended after {seconds:.0f} s, its deadline"
    finally:
        # A child that ended by itself may have left others of its group.
        if not end(child):
            why = f"{why or 'was interrupted'}, and the system can't end it: the GPU or its driver may hang"
    for figure in tail.new():
        take(figure)
    if why is None and child.returncode != 0:
        lines = log.read_text(errors="replace").strip().splitlines()
        why = f"ended with {child.returncode}: {' / '.join(lines[-3:])}"
    return why

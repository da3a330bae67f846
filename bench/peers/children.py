"""Child processes that are measured: one at a time, and gone, memory included, before the next."""

import contextlib
import os
import pathlib
import platform
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass

THREADS = 2


class Failed(Exception):
    """A child that did not end well; the message holds its last lines."""


@dataclass(frozen=True)
class Ended:
    """What a finished child leaves: its output, peak memory in bytes, CPU and wall seconds."""

    stdout: str
    stderr: str
    peak_rss: int
    cpu_s: float
    wall_s: float


def environment() -> dict[str, str]:
    """The environment of every engine: thread counts by OpenMP and MKL, nothing fetched from a network."""
    count = str(THREADS)
    return os.environ | {"OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count, "HF_HUB_OFFLINE": "1"}


def tail(text: str, lines: int = 12) -> str:
    """The end of a log."""
    return "\n".join(text.splitlines()[-lines:])


def run(command: list, timeout: float) -> Ended:
    """Run a command to its end; its files hold the output, so that reading it costs the machine nothing meanwhile.

    Raises Failed with the end of its output when it fails or takes longer than `timeout` seconds.
    """
    words = [str(word) for word in command]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.monotonic()
        child = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment(), start_new_session=True
        )
        late = False
        try:
            while (found := os.wait4(child.pid, os.WNOHANG))[0] == 0:
                if not late and time.monotonic() - start > timeout:
                    late = True
                    kill(child.pid)
                time.sleep(0.05)
        except BaseException:
            kill(child.pid)
            raise
        wall = time.monotonic() - start
        _, status, usage = found
        child.returncode = os.waitstatus_to_exitcode(status)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    wait_until_gone(child.pid)
    if late or child.returncode != 0:
        reason = f"took more than {timeout:.0f} s" if late else f"ended with {child.returncode}"
        raise Failed(f"{' '.join(words)}\n{reason}\n{tail(texts[0] + texts[1])}")
    return Ended(*texts, usage.ru_maxrss * 1024, usage.ru_utime + usage.ru_stime, wall)


def members(session: int) -> list[int]:
    """Processes of a child's session that have not ended."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name before the last parenthesis may hold anything.
            state, _, _, of = path.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(of) == session and state != "Z":
            found.append(int(path.parent.name))
    return found


def kill(session: int) -> None:
    """End all processes of a child's session at once."""
    for process in members(session):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def wait_until_gone(session: int, seconds: float = 60) -> None:
    """Wait until no process of a child's session is left, killing what outstays `seconds`."""
    start = time.monotonic()
    while members(session):
        if time.monotonic() - start > seconds:
            kill(session)
        time.sleep(0.05)


def memory_available() -> int:
    """Bytes that can be had without swapping; the page cache counts."""
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    line = next(line for line in lines if line.startswith("MemAvailable"))
    return int(line.split()[1]) * 1024


def settle(before: int, seconds: float = 20) -> None:
    """Wait until as much memory is available as `before`, within 256 MiB, so that no engine meets another's remains."""
    end = time.monotonic() + seconds
    while memory_available() < before - (256 << 20) and time.monotonic() < end:
        time.sleep(0.1)


def others_busy() -> float:
    """Cores that are busy while nothing of ours runs, over one second; a quiet machine has below 0.1."""
    idle, total = cpu_ticks()
    time.sleep(1)
    idle_then, total_then = cpu_ticks()
    busy = 1 - (idle_then - idle) / max(total_then - total, 1)
    return busy * (os.cpu_count() or 1)


def cpu_ticks() -> tuple[int, int]:
    """Idle and all ticks of all cores since the start of the machine."""
    fields = [int(field) for field in pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return fields[3] + fields[4], sum(fields[:8])


def machine() -> dict:
    """Processor, cores, memory and kernel."""
    info = pathlib.Path("/proc/cpuinfo").read_text()
    name = next((line.split(":", 1)[1].strip() for line in info.splitlines() if line.startswith("model name")), None)
    return {
        "processor": name or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
    }

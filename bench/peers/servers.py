"""The servers of the serving comparison: their command lines, their start and their end."""

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import children
from children import THREADS, Failed

# Tokens of prompt and output, and room to spare, that each stream may hold.
SLOT = 320


@dataclasses.dataclass(frozen=True)
class Server:
    """How a server is started and spoken to."""

    command: list
    takes_ids: bool = True
    # For `lockstep bench serve`; what it sends by itself makes Lockstep and llama.cpp ignore the end token.
    client: tuple[str, ...] = ()
    # Whether the server counts tokens; if not, each piece of its stream counts as one.
    counts: bool = True


@dataclasses.dataclass(frozen=True)
class Programs:
    """Where programs and the model are."""

    lockstep: pathlib.Path
    llama_bin: pathlib.Path | None
    mistralrs: pathlib.Path | None
    model: pathlib.Path
    lockstep_args: tuple[str, ...] = ()


def lockstep(programs: Programs, kind: str, streams: int, port: int) -> Server:
    """`lockstep serve`, one rank of two threads."""
    quantization = [] if kind == "bf16" else ["--quantization", kind]
    command = [programs.lockstep, "serve", "--device", "cpu", "--model-path", programs.model / "hf", "--port", port]
    command += ["--tp-size", 1, "--threads-per-rank", THREADS, "--context-length", SLOT]
    return Server([*command, "--max-running-requests", streams, *quantization, *programs.lockstep_args])


def llamacpp(programs: Programs, kind: str, streams: int, port: int) -> Server:
    """`llama-server` with a slot for each stream."""
    command = [programs.llama_bin / "llama-server", "-m", programs.model / f"{kind}.gguf", "--host", "127.0.0.1"]
    command += ["--port", port, "-t", THREADS, "-tb", THREADS, "-np", streams, "-c", streams * SLOT]
    return Server([*command, "-b", 2048, "-ub", 512])


def mistralrs(programs: Programs, kind: str, streams: int, port: int) -> Server:
    """`mistralrs serve` on the CPU, where it has no products of bf16; it takes text alone and counts no tokens."""
    quantization = {"f16": [], "q8_0": ["--isq", "q8_0"]}[kind]
    command = [programs.mistralrs, "serve", "--host", "127.0.0.1", "--port", port, "--max-seqs", streams]
    command += ["-m", programs.model / "hf", "--dtype", "f16", "--cpu", *quantization]
    end = json.loads((programs.model / "hf" / "config.json").read_text())["eos_token_id"]
    ends = end if isinstance(end, list) else [end]
    ignore = {"logit_bias": {str(token): -100.0 for token in ends}}
    return Server(command, False, ("--model", "default", "--extra-body", json.dumps(ignore)), False)


# What a request adds so that its answer follows a JSON schema, by server. Lockstep ends such an answer where the schema does.
HELD = {
    "lockstep": lambda schema: {
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
        "ignore_eos": False,
    },
    "llamacpp": lambda schema: {"json_schema": schema},
}

SERVERS = {"lockstep": lockstep, "llamacpp": llamacpp, "mistralrs": mistralrs}
NAMES = ["lockstep:bf16", "llamacpp:bf16", "mistralrs:f16", "lockstep:int8", "llamacpp:q8_0", "mistralrs:q8_0"]


def free_port() -> int:
    """A port that was free a moment ago, the next one too: Lockstep opens both."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                second.bind(("127.0.0.1", port + 1))
                return port


@contextlib.contextmanager
def running(server: Server, port: int, timeout: float = 300) -> Iterator[int]:
    """Start a server, wait until it answers, give its process id, and end it with all its children.

    Raises Failed with the end of its log when it does not come up.
    """
    words = [str(word) for word in server.command]
    environment = children.environment() | {"RAYON_NUM_THREADS": str(THREADS)}
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
        )
        try:
            if not healthy(child, port, timeout):
                log.seek(0)
                text = log.read().decode(errors="replace")
                raise Failed(f"{' '.join(words)}\ndid not come up\n{children.tail(text)}")
            yield child.pid
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(40)
            children.kill(child.pid)
            child.wait()
            children.wait_until_gone(child.pid)


def healthy(child: subprocess.Popen, port: int, timeout: float) -> bool:
    """Whether `/health` says yes before the time is over or the process has ended."""
    end = time.monotonic() + timeout
    while time.monotonic() < end and child.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                if answer.status == 200:
                    return True
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.2)
    return False


def peak_memory(session: int) -> int:
    """Sum of the peak resident sizes of a server's processes in bytes; pages they share count more than once."""
    total = 0
    for process in children.members(session):
        with contextlib.suppress(OSError):
            lines = pathlib.Path(f"/proc/{process}/status").read_text().splitlines()
            total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    return total

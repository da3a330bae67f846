"""A folder with all that a bare machine with a GPU needs to be measured."""

import argparse
import pathlib
import shutil
import subprocess
import sys

# What the machine that lends a GPU takes.
MOST_MIB = 64
SCRIPTS = ["quarter", "child.py", "collect.py", "parts.py", "summary.py", "predictions.json"]


def strip(path: pathlib.Path) -> None:
    """Leave out what only a debugger reads, if there is a tool for that."""
    tool = shutil.which("strip")
    if tool is None:
        print("strip is not installed: programs stay as large as they are", file=sys.stderr)
    else:
        subprocess.run([tool, str(path)], check=True)


def carry(program: str, to: pathlib.Path) -> None:
    """Copy a program without its symbols."""
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(program, to)
    to.chmod(0o755)
    strip(to)


def built(repository: pathlib.Path) -> str:
    """The program, built for speed."""
    subprocess.run(["cargo", "build", "--release", "--locked", "-p", "lockstep"], cwd=repository, check=True)
    return str(repository / "target" / "release" / "lockstep")


def collect(a: argparse.Namespace, here: pathlib.Path) -> int:
    """Fill the folder; 1 if it is too large to be carried."""
    out = pathlib.Path(a.out)
    out.mkdir(parents=True, exist_ok=True)
    carry(a.program or built(here.parents[1]), out / "lockstep")
    if a.baseline:
        carry(a.baseline, out / "baseline" / "lockstep")
    for path in a.tests:
        # Cargo's names end in a hash.
        carry(path, out / "tests" / pathlib.Path(path).name.rsplit("-", 1)[0])
    for name in SCRIPTS:
        shutil.copy(here / name, out / name)
    shutil.copy(here.parent / "peers" / "device.py", out / "device.py")
    shutil.copytree(here / "shapes", out / "shapes", dirs_exist_ok=True)
    sizes = {path: path.stat().st_size for path in sorted(out.rglob("*")) if path.is_file()}
    for path, size in sizes.items():
        print(f"{size / 2**20:8.1f} MiB  {path}")
    total = sum(sizes.values()) / 2**20
    print(f"{total:8.1f} MiB  in all, of {MOST_MIB}")
    if total > MOST_MIB:
        print("This is too large to be carried: leave --tests or --baseline out.", file=sys.stderr)
        return 1
    return 0

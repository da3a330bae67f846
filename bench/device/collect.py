"""A folder with all that a bare machine with a GPU needs to be measured."""

import argparse
import gzip
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

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
    """Copy a program without its symbols, compressed: `unpacked` undoes that."""
    to.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        bare = pathlib.Path(folder) / "program"
        shutil.copyfile(program, bare)
        strip(bare)
        with bare.open("rb") as read, gzip.open(f"{to}.gz", "wb", compresslevel=6) as write:
            shutil.copyfileobj(read, write)


def unpacked(packed: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """The program that `carry` packed, in a folder where it can run."""
    to = folder / packed.relative_to(packed.anchor).with_suffix("")
    to.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(packed, "rb") as read, to.open("wb") as write:
        shutil.copyfileobj(read, write)
    to.chmod(0o755)
    return to


def built(repository: pathlib.Path) -> str:
    """The program, built for speed."""
    subprocess.run(["cargo", "build", "--release", "--locked", "-p", "lockstep"], cwd=repository, check=True)
    return str(repository / "target" / "release" / "lockstep")


def travels(checkout: pathlib.Path, out: pathlib.Path) -> int:
    """Bytes of the files that travel along with the bundle: tracked ones, and those that git does not ignore."""
    command = ["git", "-C", str(checkout), "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"]
    try:
        found = subprocess.run(command, capture_output=True, check=True)
        paths = [checkout / os.fsdecode(name) for name in found.stdout.split(b"\0") if name]
    except (OSError, subprocess.CalledProcessError):
        paths = list(checkout.rglob("*"))
    # The bundle is counted by itself, and a sparse checkout lacks files that are tracked.
    others = [path for path in paths if path.is_file() and out.resolve() not in path.resolve().parents]
    return sum(path.stat().st_size for path in others)


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
    checkout = pathlib.Path(a.checkout or here.parents[1])
    along = travels(checkout, out)
    print(f"{along / 2**20:8.1f} MiB  {checkout}, which travels along")
    total = (sum(sizes.values()) + along) / 2**20
    print(f"{total:8.1f} MiB  in all, of {MOST_MIB}")
    if total > MOST_MIB:
        remedy = "send the bundle from another --checkout, an otherwise empty repository (see --help); or "
        remedy += "leave --tests or --baseline out, and give programs that are built with --release"
        print(f"This is too large to be carried: {remedy}.", file=sys.stderr)
        return 1
    return 0

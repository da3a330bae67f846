#!/usr/bin/env python3
"""Packs the program as a Debian package with a systemd service.

usage: deb.py PROGRAM VERSION FOLDER

Needs dpkg-deb. The service is installed, but neither enabled nor started: `systemctl enable --now
lockstep` does both, after /etc/lockstep/lockstep.toml says what is served.
"""

import gzip
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

CONTROL = """\
Package: lockstep
Version: {version}
Architecture: {architecture}
Maintainer: Lockstep's authors <lockstep@localhost>
Installed-Size: {kib}
Depends: libc6 (>= {glibc}), libgcc-s1
Recommends: ca-certificates
Section: science
Priority: optional
Description: server of large language models
 Serves large language models from cooperating processes: OpenAI-compatible
 HTTP and gRPC in front, tensor-parallel workers behind. A demo model is part
 of the program; others are loaded by their names on the Hugging Face Hub.
"""


def glibc_of(program: Path) -> str:
    """The newest version of glibc whose symbols the program asks for."""
    found = re.findall(rb"GLIBC_(\d+)\.(\d+)\0", program.read_bytes())
    major, minor = max((int(a), int(b)) for a, b in found)
    return f"{major}.{minor}"


def architecture() -> str:
    asked = subprocess.run(
        ["dpkg", "--print-architecture"], check=True, capture_output=True, text=True
    )
    return asked.stdout.strip()


def install(source: Path, root: Path, target: str, mode: int = 0o644) -> None:
    path = root / target
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, path)
    path.chmod(mode)


def fill(root: Path, program: Path) -> None:
    """The files of the package, where they will be."""
    install(program, root, "usr/bin/lockstep", 0o755)
    install(HERE / "debian/lockstep.service", root, "usr/lib/systemd/system/lockstep.service")
    install(HERE / "debian/lockstep.toml", root, "etc/lockstep/lockstep.toml")
    documents = "usr/share/doc/lockstep"
    install(ROOT / "LICENSE", root, f"{documents}/copyright")
    for page in sorted((ROOT / "docs").glob("*.md")):
        install(page, root, f"{documents}/{page.name}")
    changes = root / documents / "changelog.gz"
    with gzip.GzipFile(changes, "wb", mtime=0) as file:
        file.write(b"lockstep: see the repository's history.\n")


def pack(program: Path, version: str, folder: Path) -> Path:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "lockstep"
        root.mkdir(mode=0o755)
        fill(root, program)
        size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
        control = root / "DEBIAN"
        control.mkdir(mode=0o755)
        text = CONTROL.format(
            version=version,
            architecture=architecture(),
            kib=size // 1024 + 1,
            glibc=glibc_of(program),
        )
        (control / "control").write_text(text)
        (control / "conffiles").write_text("/etc/lockstep/lockstep.toml\n")
        for script in ("postinst", "prerm", "postrm"):
            install(HERE / "debian" / script, control, script, 0o755)
        package = folder / f"lockstep_{version}_{architecture()}.deb"
        subprocess.run(
            ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", root, package], check=True
        )
    return package


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    print(pack(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])))

"""`python -m docs.vendor` brings in the npm files that pages use: pinned, checked and compressed.

Pages load nothing from elsewhere, so these files and their licences are part of the package. Only this
program needs npm.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

VENDOR = Path(__file__).parents[1] / "worker/data/pages/static/vendor"
_COMPRESSED = (".js", ".css")


@dataclass(frozen=True)
class NpmPackage:
    """A published package; `files` maps paths in it to names here, `integrity` is npm's own."""

    name: str
    version: str
    integrity: str
    files: dict[str, str] = field(default_factory=dict)


PACKAGES = (
    NpmPackage(
        "swagger-ui-dist",
        "5.35.0",
        "sha512-U06rpMtW9V3XPGOBeamTUSr0Z09jMX4IJuANpE/EZbAhw0G8CgwrzU4YmXkn/h0wCDNsXdGarTNNHC3sU8yVUQ==",
        {
            "swagger-ui-bundle.js": "swagger-ui.js",
            "swagger-ui.css": "swagger-ui.css",
            "LICENSE": "swagger-ui.LICENSE.txt",
            "NOTICE": "swagger-ui.NOTICE.txt",
            "swagger-ui-bundle.js.LICENSE.txt": "swagger-ui.js.LICENSE.txt",
        },
    ),
)


def packed(name: str, content: bytes) -> tuple[str, bytes]:
    """The name and bytes under which a file is kept."""
    if not name.endswith(_COMPRESSED):
        return name, content
    return f"{name}.gz", gzip.compress(content, 9, mtime=0)


def fetched(package: NpmPackage, folder: Path) -> dict[str, bytes]:
    """The package's wanted files by their names here; refuses any other content than the pinned one."""
    command = ["npm", "pack", "--silent", "--pack-destination", str(folder)]
    subprocess.run([*command, f"{package.name}@{package.version}"], check=True, stdout=subprocess.DEVNULL)
    (archive,) = folder.glob("*.tgz")
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if f"sha512-{digest}" != package.integrity:
        raise SystemExit(f"{package.name} {package.version} is not what was pinned: sha512-{digest}")
    found = {}
    with tarfile.open(archive) as files:
        for path, name in package.files.items():
            member = files.extractfile(f"package/{path}")
            if member is None:
                raise SystemExit(f"{package.name} {package.version} has no {path}")
            found[name] = member.read()
    return found


def main() -> None:
    VENDOR.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        with tempfile.TemporaryDirectory() as folder:
            for name, content in fetched(package, Path(folder)).items():
                kept, data = packed(name, content)
                (VENDOR / kept).write_bytes(data)


if __name__ == "__main__":
    main()

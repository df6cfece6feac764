"""What tells a model from another of the same name: a hash of its files."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def hash_model(
    directory: str | os.PathLike[str], weights: bool = True, adapters: str | os.PathLike[str] | None = None
) -> str:
    """A hash of a checkpoint, by which results find the weights that they are of.

    Args:
        directory: of the checkpoint: its configuration, and every `.safetensors` file there by name.
        weights: whether they count; not where they are drawn anew.
        adapters: a directory whose `.safetensors` files come after these.

    Returns:
        SHA-256, in hexadecimal.

    Raises:
        OSError: if a file cannot be read.
    """
    files = [Path(directory) / "config.json", *(sorted(Path(directory).glob("*.safetensors")) if weights else ())]
    files += [] if adapters is None else sorted(Path(adapters).glob("*.safetensors"))
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while part := file.read(2**20):
                digest.update(part)
    return digest.hexdigest()

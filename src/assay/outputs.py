"""What a command writes: all of its files, or none."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from assay.errors import InputError

__all__ = ["write_folder"]


def write_folder(out: Path, files: Mapping[str, bytes | str]) -> None:
    """Write files into a folder, made where it is missing; text as UTF-8.

    Each is written under another name first: a full disk leaves what was there before. What else lies in the folder
    stays. Raises `InputError` where the folder can't be written.
    """
    parts: dict[Path, Path] = {}
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            part = out / f"{name}.{os.getpid()}.part"
            parts[part] = out / name
            part.write_bytes(content.encode() if isinstance(content, str) else content)
        for part, path in parts.items():
            part.replace(path)
    except OSError as error:
        for part in parts:
            part.unlink(missing_ok=True)
        raise InputError(f"--out: {out} can't be written ({error.strerror})") from None

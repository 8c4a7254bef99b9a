"""What `pip download` needs of a back end: so the real one never runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Any = None) -> str:
    """Write a name and a version."""
    del config_settings
    name = "abstractruntime-0.13.0.dist-info"
    folder = Path(metadata_directory) / name
    folder.mkdir()
    text = "Metadata-Version: 2.1\nName: abstractruntime\nVersion: 0.13.0\n"
    (folder / "METADATA").write_text(text, encoding="utf-8")
    return name


def build_wheel(*_: Any) -> str:
    """Refuse: nothing is built."""
    raise NotImplementedError

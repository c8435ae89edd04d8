"""A copy of what a clone of the repository holds of the package, to build or to spoil."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINKED = ("policies", "runtime", "conf", "templates")  # folders of the top level that vtoken_sdk/ links to


def copy_sources(target: Path) -> Path:
    """Copy the package's folders, links as links, and the files that describe it into the new folder `target`. Returns `target`."""
    clutter = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in ("src", "vtoken_sdk", "hydra_plugins", *LINKED):
        shutil.copytree(ROOT / folder, target / folder, symlinks=True, ignore=clutter)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target / name)
    return target

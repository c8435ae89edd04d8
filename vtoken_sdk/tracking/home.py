"""Trackers want folders of their own under the home folder; where that cannot be written, they get others."""

from __future__ import annotations

import os
from pathlib import Path

FOLDERS = ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR")


def writable_home() -> None:
    """Points W&B elsewhere if it must be. For processes of our own alone: it changes their environment."""
    home = Path("~").expanduser()
    if not os.access(home, os.W_OK):
        scratch = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"vtoken-wandb-{os.getuid()}")
        for name in FOLDERS:
            os.environ.setdefault(name, scratch)

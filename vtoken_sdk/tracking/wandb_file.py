"""Whether the file of an offline run is whole. W&B's service does not say so when a disk is full; a cut file cannot be synced whole.

The format is LevelDB's log (blocks of 32 KiB; records of CRC, length, type and data) after a header of 7 bytes.
"""

from __future__ import annotations

import struct
import time
from pathlib import Path

HEADER = 7  # bytes: of the file, and of each record
BLOCK = 32 * 1024
FULL, LAST = 1, 4  # types of records that end one


def becomes_whole(path: Path, seconds: float) -> bool:
    """W&B's service writes the end of the file shortly after it has said that the run is finished."""
    end = time.monotonic() + seconds
    while not (whole := is_whole(path)) and time.monotonic() < end:
        time.sleep(0.05)
    return whole


def is_whole(path: Path) -> bool:
    """Whether the last record of the file ends where the file does."""
    data = path.read_bytes()
    at, ended = HEADER, False
    while at < len(data):
        if BLOCK - at % BLOCK < HEADER:  # no room for a record: zeros to the block's end
            at += BLOCK - at % BLOCK
            continue
        if at + HEADER > len(data):
            return False
        _, length, kind = struct.unpack_from("<IHB", data, at)
        at += HEADER + length
        ended = kind in (FULL, LAST)
    return ended and at == len(data)

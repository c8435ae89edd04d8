"""What an engine is given to do: prompts, how much to generate for each, and when each arrives. The same seed gives the same requests.

`synthetic` draws random token ids, `text` cuts windows from real text, `sharegpt` takes conversations, `trace` takes the lengths, times
and shared beginnings of a public request trace. `arrivals` says when requests come that have no times of their own.
"""

from __future__ import annotations

from .arrivals import gamma_arrivals, stretched
from .base import Workload, sha256_of
from .build import build_workload, is_text
from .lengths import LENGTHS, Lengths
from .sharegpt import sharegpt
from .synthetic import synthetic
from .text import BUNDLED_TEXT, text
from .trace import trace

__all__ = [
    "BUNDLED_TEXT",
    "LENGTHS",
    "Lengths",
    "Workload",
    "build_workload",
    "gamma_arrivals",
    "is_text",
    "sha256_of",
    "sharegpt",
    "stretched",
    "synthetic",
    "text",
    "trace",
]

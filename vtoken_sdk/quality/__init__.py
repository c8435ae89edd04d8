"""What eviction costs in quality: the same texts, needles and questions with eviction and with the full cache.

`build_items` makes what is judged, the same for every policy; `judge` runs it through an engine against a `FullCache`, one `Score` an
item; `summary` is a job's row of means. Items that the full cache itself fails are dropped and counted.
"""

from .compare import QualityError, compare
from .full_cache import FullCache, Truth
from .item import SUITES, Item, Query, Score, Task
from .judge import judge
from .longbench import longbench
from .needle import needles
from .shelf import FolderShelf, MemoryShelf
from .suites import Suites, build_items, continuations, small_model_note
from .summary import summary

__all__ = [
    "SUITES", "FolderShelf", "FullCache", "Item", "MemoryShelf", "QualityError", "Query", "Score", "Suites", "Task", "Truth",
    "build_items", "compare", "continuations", "judge", "longbench", "needles", "small_model_note", "summary",
]  # fmt: skip

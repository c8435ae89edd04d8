"""Results for people and for papers: the comparison on a terminal, and reports.

folders (record) -> rows, grouped and compared (compare, figures, stats) -> twelve parts (parts) -> one document (document)
                 -> html, md, tex, csv, json, parquet, W&B
"""

from __future__ import annotations

from .terminal import print_comparison, width_of_output
from .write import write_page

__all__ = ["print_comparison", "width_of_output", "write_page"]

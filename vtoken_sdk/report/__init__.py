"""Results for people: the comparison on a terminal, and the report as one HTML file."""

from __future__ import annotations

from .html import render
from .terminal import print_comparison, width_of_output

__all__ = ["print_comparison", "render", "width_of_output"]

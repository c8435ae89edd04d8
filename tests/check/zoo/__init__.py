"""Policies broken on purpose, each in one way, and by which check each must be caught."""

from . import answers, batching, declarations, purity, tensors
from .entry import ZOO

__all__ = ["ZOO", "answers", "batching", "declarations", "purity", "tensors"]

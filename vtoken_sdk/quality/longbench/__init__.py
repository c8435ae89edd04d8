"""LongBench's format (Bai et al. 2023, arXiv 2308.14508) for data of one's own."""

from .items import longbench

__all__ = ["longbench"]

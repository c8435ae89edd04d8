"""Broken in precision, or where tensors live."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vtoken_sdk.policy import CacheView, EvictionPolicy

from .entry import caught_by


@caught_by("bf16")
@dataclass
class NormsInBf16(EvictionPolicy):
    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.score(lambda kv: kv.keys.norm(dim=-1)))


@caught_by("device")
@dataclass
class IdsOnTheCpu(EvictionPolicy):
    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.positions * torch.ones(cache.live.shape[-1]))


@caught_by("device")
@dataclass
class AnswersFromTheCpu(EvictionPolicy):
    """Gathers by an index on the CPU, of which shapes alone do not tell."""

    def evict_token(self, cache: CacheView) -> Tensor:
        index = torch.arange(cache.live.shape[-1]).expand(cache.live.shape)
        return cache.evict_lowest(cache.positions.expand(cache.live.shape).gather(-1, index))


@caught_by("host_reads")
@dataclass
class ReadsALength(EvictionPolicy):
    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.positions, first=int(cache.positions[0, 0, 3]))


@caught_by("host_reads")
@dataclass
class ListsTheLengths(EvictionPolicy):
    def evict_token(self, cache: CacheView) -> Tensor:
        lengths = torch.tensor(cache.length.flatten().tolist(), device=cache.live.device)[:, None, None]
        return cache.evict_lowest(cache.positions - lengths)


@caught_by("host_reads")
@dataclass
class SelectsByMask(EvictionPolicy):
    def evict_token(self, cache: CacheView) -> Tensor:
        score = torch.zeros(cache.live.shape, device=cache.live.device)
        score[cache.live] = cache.positions.expand(cache.live.shape)[cache.live].float()
        return cache.evict_lowest(score)


@caught_by("host_reads")
@dataclass
class BranchesOnAValue(EvictionPolicy):
    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.positions if cache.live.any() else -cache.positions)


@caught_by("host_reads")
@dataclass
class WorksInNumpy(EvictionPolicy):
    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(torch.from_numpy(cache.positions.cpu().numpy().copy()).to(cache.live.device))

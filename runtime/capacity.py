"""How many blocks a request can need: what admission reserves, and what can never fit."""

from __future__ import annotations

from .config import EngineConfig


def _ceil(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)


def reuses_dead_slots(config: EngineConfig, evicts: bool) -> bool:
    """Does the runtime promise that space of dead tokens serves again, whatever the victims' pattern?

    `fresh` needs free blocks to work with, a threshold leaves fuller blocks as they are, and dead slots of shared blocks are not refilled.
    """
    if config.runtime == "vtoken":
        return evicts and config.reclaim.packing == "fill" and config.reclaim.threshold == 1
    return evicts and (config.runtime == "page1" or (config.runtime == "refill" and not config.prefix_cache))


def peak_blocks(config: EngineConfig, prompt: int, total: int, evicts: bool) -> int:
    """Blocks that a request needs until its prompt (or what it recomputes) of `prompt` tokens is in, plus one to go on.

    total: tokens whose keys and values it will ever hold, prompt + max_tokens - 1.
    """
    size = config.slots_per_block
    most = prompt
    if reuses_dead_slots(config, evicts) and config.evict.prefill == "chunk":
        # If the pool is short, a step waits until what the last chunk's eviction killed is compacted.
        most = min(prompt, config.budget_of(prompt) + config.chunk + (config.reclaim.slack if config.compacts else 0))
    return min(_ceil(most, size) + 1, _ceil(total, size))


def settled_blocks(config: EngineConfig, prompt: int, total: int, evicts: bool) -> int:
    """Blocks that a request comes to hold as it decodes, as far as the runtime promises: for the estimate in reports."""
    size = config.slots_per_block
    live = total
    if reuses_dead_slots(config, evicts):
        if config.evict.prefill == "never" or (config.runtime == "refill" and config.evict.prefill == "end"):
            live = min(total, prompt)  # whose dead slots are filled before anything grows
        else:
            every = config.evict.every or total
            extra = config.chunk if config.runtime == "refill" else min(every, max(0, total - prompt))
            live = min(total, config.budget_of(prompt) + extra)
    return min(_ceil(live, size) + 1, _ceil(total, size))


def concurrent_requests(config: EngineConfig, prompt: int, max_tokens: int, pool_blocks: int, evicts: bool) -> int:
    """Estimate: how many equal requests run at once, none preempted: all but the last settled, the last at its peak.

    pool_blocks: blocks of `block_size` tokens, whatever the runtime's own block is.
    """
    total = prompt + max_tokens - 1
    blocks = pool_blocks * config.block_size // config.slots_per_block
    peak, settled = peak_blocks(config, prompt, total, evicts), settled_blocks(config, prompt, total, evicts)
    if peak > blocks:
        return 0
    return 1 + (blocks - max(peak, settled)) // max(settled, 1)

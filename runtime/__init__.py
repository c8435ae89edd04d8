"""The paged-KV runtime. The life of a token:

    engine step -> policy.sync_new_tokens -> policy.evict_token   (policy_runner)
                -> TokenTable.evict_token   live bit cleared, slot map rewritten   (token_table)
                -> plan                     which live tokens move where   (planner)
                -> Reclaimer                copies beside the main stream   (reclaimer, copy_stream)
                -> TokenTable.apply_moves   slot map published
                -> BlockPool.push_freed     (block_pool, upkeep)

Blocks lose owners in three ways only: applied moves, a block whose tokens are all dead, an owner that ended (a request, or an entry
of the prefix index); and those without any become free in one, `BlockPool.push_freed`. Attention reads through the slot map, so it
never sees a dead token.
"""

from vtoken_sdk.policy import PolicyError

from .config import ConfigError, EngineConfig, EvictOptions, ReclaimOptions
from .engine import Engine
from .recording import Recording, look_ahead
from .records import StepRecord
from .request import Eviction, RequestOutput, RequestRejected, SamplingParams

__all__ = [
    "ConfigError",
    "Engine",
    "EngineConfig",
    "EvictOptions",
    "Eviction",
    "PolicyError",
    "ReclaimOptions",
    "Recording",
    "RequestOutput",
    "RequestRejected",
    "SamplingParams",
    "StepRecord",
    "look_ahead",
]

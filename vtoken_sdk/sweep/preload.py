"""What every job imports: loaded once, by the fork server."""

import torch  # noqa: F401
import transformers.models.llama.modeling_llama  # noqa: F401

import vtoken_sdk.runtime
import vtoken_sdk.sweep.attempt
import vtoken_sdk.sweep.run  # noqa: F401

"""What every job imports: loaded once, by the fork server. A job then starts in a fraction of a second."""

import numpy.ma  # noqa: F401  # np.percentile would import it
import pyarrow.parquet  # noqa: F401
import torch  # noqa: F401
import transformers.models.llama.modeling_llama  # noqa: F401

import vtoken_sdk.runtime
import vtoken_sdk.sweep.attempt
import vtoken_sdk.sweep.run  # noqa: F401

"""Open-loop replay: what one run's policies saw, recorded once, shown to any policy without a model.

Open-loop means that a policy's evictions do not change what it is shown: the attention is the full cache's, restricted to the tokens that
are live and scaled to the same sum. Memory figures are exact for the victims of the replay; the victims are not those of a real run.
"""

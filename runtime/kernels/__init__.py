"""Triton kernels of the runtime. Each has a twin in plain PyTorch, which is the CPU path and the truth in tests.

Imported only where kernels run: Triton exists on Linux alone, and reads TRITON_INTERPRET when it is imported.
"""

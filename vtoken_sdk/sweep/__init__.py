"""vtoken-sweep: plans jobs, runs each in a process of its own, compares them.

options (settings) -> plan (plan, check) -> launcher -> one process a job (isolate, run) -> files (results) -> table, report, W&B
"""

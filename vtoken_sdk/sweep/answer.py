"""An experiment's part of a sweep: which there are, and what the finished jobs say."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from rich.console import Console

from vtoken_sdk.metrics import Row
from vtoken_sdk.nearest import did_you_mean
from vtoken_sdk.tracking.files import write_json

from .values import UsageError

FILE = "experiment.json"


def experiment_names() -> list[str]:
    """Those that ship with the project."""
    folder = files("vtoken_sdk.conf").joinpath("experiment")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def check_experiments(args: Sequence[str]) -> None:
    """Raises UsageError if the command line names an experiment that does not exist; the user's own are found under --config-dir."""
    named = [arg.lstrip("+").partition("=")[2] for arg in args if arg.lstrip("+").startswith("experiment=")]
    if any(arg.startswith(("--config-dir", "-cd")) for arg in args):
        return
    for name in named:
        if name not in experiment_names():
            meant = did_you_mean(name, experiment_names(), "; did you mean experiment={}?")
            raise UsageError(f"experiment={name}: use one of {', '.join(experiment_names())}{meant}")


def answer(console: Console, folder: Path, name: str, rows: Sequence[Row]) -> tuple[list[str], bool]:
    """Print what is measured beside the paper's figures, and write it down. Lines for the end of the output, and whether it worked."""
    from vtoken_sdk.experiments import EXPERIMENTS, as_json, load_runs, print_outcome

    if name not in EXPERIMENTS:  # the user's own: options alone
        return [], True
    runs = load_runs(folder, rows)
    try:
        outcome = EXPERIMENTS[name](runs)
    except Exception as error:  # a job's steps are gone or broken: the other files are whole, and are still to be written
        return [f"Experiment {name} could not be evaluated: {type(error).__name__}: {error}"], False
    print_outcome(console, name, outcome, runs)
    try:
        write_json(folder / FILE, as_json(name, outcome, runs))
    except OSError as error:
        return [f"{FILE} could not be written: {error}"], False
    return [f"Experiment: {folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder}/{FILE}"], True

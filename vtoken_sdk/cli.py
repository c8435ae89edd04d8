"""Commands. Imports nothing heavy: help and errors do not wait for torch."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

USAGE = """vtoken-sweep KEY=VALUE[,VALUE...] ...    compare KV-eviction policies and runtimes

  vtoken-sweep policy=h2o ctx=16k                  five runtimes under one policy
  vtoken-sweep policy=h2o,random budget=0.25,0.5   every combination; native runs once
  vtoken-sweep policy=./mine.py,h2o                a policy of your own, against a bundled one
  vtoken-sweep experiment=memory                   an experiment of the vToken paper, its figures beside those measured
  vtoken-sweep model=smollm2 policy=h2o ctx=1k     real weights and text, with quality figures

  vtoken-sweep from=DIR/jobs/JOB                   a recorded run again, and whether its figures come out the same
  vtoken-sweep search=optuna threshold=interval(0.3,1.0) runtime=vtoken      the best value instead of a grid

  --config-dir DIR --config-name FILE   options from DIR/FILE.yaml; those of the command line come on top
  --cfg job                             print the options and stop
  --hydra-help                          options of Hydra, such as hydra/launcher=joblib
"""
# Hydra plans nothing and logs nothing by itself.
HYDRA = ("hydra.mode=MULTIRUN", "hydra.output_subdir=null", "hydra/sweeper=vtoken", "hydra/hydra_logging=none", "hydra/job_logging=none")
ASKS = ("--cfg", "-c", "--info", "-i", "--hydra-help", "--version", "--shell-completion", "-sc")  # Hydra answers and nothing runs


def help_text() -> str:
    """Usage, the bundled and installed policies, and every key with its comment."""
    from vtoken_sdk.registry import available_policies
    from vtoken_sdk.sweep.settings import shipped_text

    return f"{USAGE}\nPolicies: {', '.join(available_policies())}\n\n{shipped_text()}"


def keys_of(args: Sequence[str]) -> list[str]:
    """The keys of ours among them, as the configuration has them. Without the values of flags, such as --config-name x=y."""
    words = [word for before, word in zip(["", *args], args, strict=False) if not before.startswith("-") or before.count("=")]
    ours = [word for word in to_hydra(words) if word.startswith(("++", "+experiment="))]
    return [word.lstrip("+").partition("=")[0] for word in ours]


def to_hydra(args: Sequence[str]) -> list[str]:
    """Flags, then options. Hydra takes any key: whether it exists is told by us, with the nearest. policy.recent=1 is option.recent=1.

    experiment=NAME is a file of options, conf/experiment/NAME.yaml. num_prompts is what vllm calls requests.
    """
    flags, options = [], []
    for arg in args:
        key, equals, value = arg.lstrip("+").partition("=")
        if not equals or arg.startswith("-"):
            flags.append(arg)
        elif key == "experiment":
            options.append(f"+{key}={value}")
        elif arg.startswith("~") or key.startswith("hydra") or "/" in key or "@" in key:
            options.append(arg)
        else:
            key = f"option.{key.removeprefix('policy.')}" if key.startswith("policy.") else key
            key = "requests" if key == "num_prompts" else key
            options.append(f"++{key}={value}")
    return [*flags, *options]


def main() -> None:
    """vtoken-sweep. Exit codes: 0 good, 2 usage (nothing ran), 3 some jobs failed or are missing, 4 other
    figures than a record's, 130 interrupted."""
    _open_standard_streams()
    args = sys.argv[1:]
    if {"-h", "--help"} & set(args):
        print(help_text(), end="")
        return
    # On a busy machine, torch's threads otherwise burn the cores that they wait for: minutes instead of seconds.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises instead of printing a trace and exiting with 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _sweep(args)
    except KeyboardInterrupt:  # jobs that run are stopped in an orderly way, and not here
        print("vtoken-sweep: interrupted before any job ran", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(1)


def _sweep(args: Sequence[str]) -> None:
    from vtoken_sdk.sweep.settings import check_keys, check_once
    from vtoken_sdk.sweep.values import UsageError

    runs = not any(arg.startswith(ASKS) for arg in args)
    try:
        check_keys(keys_of(args))  # before anything heavy starts
        check_once(keys_of(args))
    except UsageError as error:
        _refuse(str(error))
    from vtoken_sdk.sweep import isolate

    if runs:
        isolate.warm_up()
    import hydra
    from hydra.errors import HydraException, OverrideParseException
    from omegaconf.errors import OmegaConfBaseException

    from vtoken_sdk.sweep.answer import check_experiments
    from vtoken_sdk.sweep.cluster import launcher_arguments
    from vtoken_sdk.sweep.provenance import COMMAND
    from vtoken_sdk.sweep.sweep import run_here

    COMMAND.set(shlex.join(["vtoken-sweep", *args]))
    try:
        check_experiments(args)
        sys.argv[1:] = [*to_hydra(args), *launcher_arguments(args), *(HYDRA if runs else HYDRA[1:])]
        if own := {word.partition("=")[0] for word in HYDRA} & {arg.lstrip("+").partition("=")[0] for arg in args}:
            raise UsageError(f"{min(own)}: vtoken-sweep sets it; leave it out")
        hydra.main(version_base="1.3", config_path="pkg://vtoken_sdk.conf", config_name="vtoken_sweep")(run_here)()
    except UsageError as error:
        message = str(error)
    except OverrideParseException as error:
        message = f"{error.override.lstrip('+')}: not of the form KEY=VALUE, or with a character that wants quotes: KEY=\"'VALUE'\""
    except (HydraException, OmegaConfBaseException) as error:
        message = str(error).partition("\n")[0]
    else:
        return
    _refuse(message)


def _refuse(message: str) -> NoReturn:
    print(f"vtoken-sweep: {message}", file=sys.stderr)
    sys.exit(2)


def _open_standard_streams() -> None:
    """A closed stdin, stdout or stderr: the next file opened would take its number."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


if __name__ == "__main__":
    main()

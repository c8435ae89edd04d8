"""Install packages into a virtual environment, fast: `python requirements/install.py .venv -e ".[dev]"`.

Needs Python 3.11 to 3.13 with pip, nothing else. Makes the environment if there is none, then hands the arguments to `uv pip install`.
uv takes about a quarter of pip's time, but reads no pip configuration: the index, mirror, find-links, constraints and certificate
that pip would use here are passed on, so both take the same files. Where uv cannot be had or fails, pip does the work.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

CONSTRAINTS = Path(__file__).with_name("constraints.txt")
SUPPORTED = ((3, 11), (3, 14))  # from, up to but not including

# pip's name of a setting, uv's option for it, whether the setting holds several values
SETTINGS = (
    ("index-url", "--default-index", False),
    ("extra-index-url", "--index", True),
    ("find-links", "--find-links", True),
    ("constraint", "--constraints", True),
    ("trusted-host", "--allow-insecure-host", True),
)


def pip_settings(listing: str) -> dict[str, str]:
    """The values in force from the output of `pip config list`: the environment beats a section for `install`, which beats `global`."""
    found: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listing.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.partition(".")
        if section in found and value:
            found[section][key.replace("_", "-")] = str(ast.literal_eval(value))
    return found["global"] | found["install"] | found[":env:"]


def uv_options(settings: Mapping[str, str]) -> list[str]:
    """uv's options that say the same as these settings of pip's."""
    options: list[str] = []
    for key, option, several in SETTINGS:
        values = settings.get(key, "")
        for value in values.split() if several else [values] * bool(values):
            options += [option, value]
    if settings.get("no-index", "").lower() in {"1", "true", "yes", "on"}:
        options.append("--no-index")
    if "extra-index-url" in settings:
        options += ["--index-strategy", "unsafe-best-match"]  # as pip: the best version of all indexes
    return options


def uv_environment(settings: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` with pip's certificate, proxy and time limit, where it names none for uv itself."""
    passed = {"SSL_CERT_FILE": "cert", "ALL_PROXY": "proxy", "UV_HTTP_TIMEOUT": "default-timeout"}
    return {name: settings[key] for name, key in passed.items() if settings.get(key)} | dict(environment)


def pip_command(python: Path) -> list[str]:
    """The pip that installs for `python`: this interpreter's, which spares the new environment a pip of its own."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", "--python", str(python)]
    return [str(python), "-m", "pip"]


def find_uv(folder: Path, pip: list[str]) -> str | None:
    """Path of a uv to run: the environment's, the machine's, or one newly installed into the environment; None if there is none."""
    own = folder / "bin" / "uv"
    if not own.exists():
        if elsewhere := shutil.which("uv"):
            return elsewhere
        subprocess.run([*pip, "install", "--quiet", "--no-compile", "--no-deps", "--constraint", str(CONSTRAINTS), "uv"], check=False)
    return str(own) if own.exists() else None


def install(folder: Path, arguments: list[str]) -> int:
    """Install what `arguments` (pip's words) name into the environment in `folder`. Returns an exit status."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, symlinks=True, clear=folder.exists(), with_pip=importlib.util.find_spec("pip") is None)
    pip = pip_command(python)
    pinned = ["--constraint", str(CONSTRAINTS), *arguments]
    uv = find_uv(folder, pip)
    if uv:
        listing = subprocess.run([*pip, "config", "list"], capture_output=True, text=True, check=False).stdout
        settings = pip_settings(listing)
        command = [uv, "pip", "install", "--python", str(python), *uv_options(settings), *pinned]
        if subprocess.run(command, env=uv_environment(settings, os.environ), check=False).returncode == 0:
            return 0
        print("uv did not install this; trying pip", file=sys.stderr)
    return subprocess.run([*pip, "install", "--no-compile", *pinned], check=False).returncode


def main(arguments: list[str]) -> int:
    """`install.py FOLDER ARGUMENT...`. Returns an exit status: 2 for a Python that the project does not support, or no arguments."""
    if not SUPPORTED[0] <= sys.version_info[:2] < SUPPORTED[1]:
        version = ".".join(map(str, sys.version_info[:3]))
        print(f"This is Python {version}; vtoken-sdk needs 3.11, 3.12 or 3.13. Name one: make PYTHON=python3.12 ...", file=sys.stderr)
        return 2
    if len(arguments) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    return install(Path(arguments[0]), arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

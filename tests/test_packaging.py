"""What a user installs: the wheel's files, and how it behaves far from the repository. And how the set-up reads pip's configuration."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from .source_copy import LINKED, ROOT, copy_sources


@dataclass(frozen=True)
class Built:
    """A wheel, the names in it, and the folder that pip installed it into."""

    wheel: Path
    names: frozenset[str]
    site: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Source distribution, the wheel built from it, and an installation of that, all without a network."""
    source = copy_sources(tmp_path_factory.mktemp("build") / "source")
    run("-m", "build", "--no-isolation", "--outdir", "dist", cwd=source)
    (wheel,) = (source / "dist").glob("*.whl")
    site = tmp_path_factory.mktemp("install") / "site"
    run("-m", "pip", "install", "--no-deps", "--no-index", "--no-compile", "--target", str(site), str(wheel), cwd=source)
    with zipfile.ZipFile(wheel) as archive:
        names = frozenset(archive.namelist())
    return Built(wheel, names, site)


def run(*arguments: str, cwd: Path, path: Path | None = None) -> str:
    """Output of a Python of this environment, in `cwd`, with `path` before its packages and the CUDA driver out of reach."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(path or "")}
    done = subprocess.run([sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def source_files() -> set[str]:
    """What the wheel must hold, by the names it has there."""
    folders = {"vtoken_sdk": "vtoken_sdk", "hydra_plugins": "hydra_plugins"} | {name: f"vtoken_sdk/{name}" for name in LINKED}
    files: set[str] = set()
    for folder, installed in folders.items():
        for path in (ROOT / folder).rglob("*"):
            inside = path.relative_to(ROOT / folder)
            linked = folder == "vtoken_sdk" and inside.parts[0] in LINKED
            if path.is_file() and "__pycache__" not in path.parts and not linked:
                files.add(f"{installed}/{inside.as_posix()}")
    return files


def test_wheel_holds_every_source_file_and_no_other(built: Built) -> None:
    packaged = {name for name in built.names if ".dist-info/" not in name}
    assert packaged == source_files()


def test_wheel_installs_no_common_name(built: Built) -> None:
    top = {name.split("/")[0] for name in built.names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"vtoken_sdk", "hydra_plugins"}
    assert "hydra_plugins/__init__.py" not in built.names, "with it, other Hydra plug-ins could not be found"


def test_wheel_carries_license_and_entry_points(built: Built) -> None:
    (info,) = built.site.glob("vtoken_sdk-*.dist-info")
    assert "Apache License" in (info / "licenses" / "LICENSE").read_text()
    entries = (info / "entry_points.txt").read_text()
    for policy in (ROOT / "policies").glob("[!_]*.py"):
        assert f"{policy.stem} = vtoken_sdk.policies.{policy.stem}:" in entries
    assert "vtoken-sweep = vtoken_sdk.cli:main" in entries


def test_links_lead_to_the_folders() -> None:
    for name in LINKED:
        link = ROOT / "vtoken_sdk" / name
        assert link.is_symlink(), f"{link} is not a link; a checkout without links needs `git config core.symlinks true`"
        assert link.resolve() == ROOT / name


EVERY_MODULE = """
import importlib, pkgutil, sys, warnings
warnings.simplefilter("ignore")
import vtoken_sdk
import vtoken_sdk.cli
print(vtoken_sdk.__file__)
assert "torch" not in sys.modules, "the command's help would wait for torch"
for module in [*pkgutil.walk_packages(vtoken_sdk.__path__, "vtoken_sdk.")]:
    importlib.import_module(module.name)
    print(module.name)
import hydra_plugins.vtoken_sweeper
import torch
assert not torch.cuda.is_initialized(), "an import initialized CUDA"
for name in vtoken_sdk.__all__:
    getattr(vtoken_sdk, name)
"""


def make_user_folders(folder: Path) -> None:
    for name in LINKED:
        (folder / name).mkdir()
    (folder / "runtime" / "mine.py").write_text("NAME = 'my runtime'\n")
    (folder / "policies" / "mine.py").write_text(
        "from vtoken_sdk.policies.streaming_llm import StreamingLLM\n\n\nclass Mine(StreamingLLM):\n    pass\n"
    )


USER_FOLDERS = """
import policies.mine, runtime.mine
from vtoken_sdk.registry import load_policy
import vtoken_sdk.policies.h2o, vtoken_sdk.runtime
print(type(load_policy("policies.mine:Mine")).__module__, runtime.mine.NAME)
"""


def test_installed_modules_import_without_driver_beside_the_users_folders(built: Built, tmp_path: Path) -> None:
    """With no GPU in sight: an import that asked Triton or CUDA for its driver would raise. Folders of our names stay the user's."""
    make_user_folders(tmp_path)
    *said, users = run("-c", EVERY_MODULE + USER_FOLDERS, cwd=tmp_path, path=built.site).splitlines()
    assert users == "policies.mine my runtime"
    file, *modules = said
    assert Path(file) == built.site / "vtoken_sdk" / "__init__.py"
    in_wheel = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in built.names if name.endswith(".py")}
    assert {"vtoken_sdk", *modules} == {name for name in in_wheel if name.startswith("vtoken_sdk")}


def test_public_names_are_listed_and_others_refused() -> None:
    import vtoken_sdk

    assert set(vtoken_sdk.__all__) <= set(dir(vtoken_sdk))
    with pytest.raises(AttributeError, match="no attribute 'Evictor'"):
        vtoken_sdk.Evictor  # noqa: B018


def test_user_folders_of_our_names_stay_the_users_beside_a_checkout(tmp_path: Path) -> None:
    make_user_folders(tmp_path)
    assert run("-c", USER_FOLDERS, cwd=tmp_path, path=ROOT / "src").strip() == "policies.mine my runtime"


def test_environment_has_no_package_of_our_folders(tmp_path: Path) -> None:
    names = ", ".join(map(repr, LINKED))
    code = f"import importlib.util\nprint([name for name in ({names}) if importlib.util.find_spec(name)])"
    assert run("-c", code, cwd=tmp_path).strip() == "[]"


@pytest.fixture(scope="module")
def installer() -> ModuleType:
    """requirements/install.py as a module."""
    spec = importlib.util.spec_from_file_location("install", ROOT / "requirements" / "install.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pip_settings_reach_uv(installer: ModuleType) -> None:
    settings = installer.pip_settings(
        "global.find-links='/none'\n"
        "global.extra-index-url='https://a.test/simple https://b.test/simple'\n"
        "install.find-links='/wheels one/two'\n"
        ":env:.find-links='/first /second'\n"
        ":env:.cert='/cert.pem'\n"
        "list.find-links='/not for install'\n"
    )
    assert settings["find-links"] == "/first /second", "the environment comes first"
    options = installer.uv_options(settings)
    assert options[:8] == [
        *("--index", "https://a.test/simple", "--index", "https://b.test/simple"),
        *("--find-links", "/first", "--find-links", "/second"),
    ]
    assert options[8:] == ["--index-strategy", "unsafe-best-match"]
    assert installer.uv_environment(settings, {"PATH": "/bin"}) == {"PATH": "/bin", "SSL_CERT_FILE": "/cert.pem"}
    assert installer.uv_environment(settings, {"SSL_CERT_FILE": "/own.pem"}) == {"SSL_CERT_FILE": "/own.pem"}


def test_no_pip_settings_ask_uv_for_nothing(installer: ModuleType) -> None:
    assert installer.uv_options(installer.pip_settings("")) == []
    assert installer.uv_options(installer.pip_settings("global.no-index='true'\n")) == ["--no-index"]


@pytest.mark.parametrize("with_uv", [True, False], ids=["uv", "pip"])
def test_set_up_installs_what_pip_would(with_uv: bool, built: Built, tmp_path: Path) -> None:
    """No index, one folder of wheels: uv finds them through pip's settings; without uv, pip does the work."""
    tools = tmp_path / "tools"
    tools.mkdir()
    if with_uv:
        (tools / "uv").symlink_to(Path(sys.executable).parent / "uv")
    settings = {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(built.wheel.parent),
        "PATH": f"{tools}:/usr/bin:/bin",
        "PIP_CONFIG_FILE": os.devnull,
    }
    command = [sys.executable, str(ROOT / "requirements" / "install.py"), str(tmp_path / "venv"), "--no-deps", "vtoken-sdk"]
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("Successfully installed" in done.stdout) is not with_uv
    shown = subprocess.run([tmp_path / "venv" / "bin" / "vtoken-sweep", "--help"], capture_output=True, text=True, check=False)
    assert "policy=h2o" in shown.stdout


def test_set_up_refuses_another_python(installer: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 1))
    assert installer.main([".venv", "-e", "."]) == 2
    assert "Python 3.10.1; vtoken-sdk needs 3.11, 3.12 or 3.13" in capsys.readouterr().err

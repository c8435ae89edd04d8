"""The documentation is true: its commands print what it shows, its code runs, its links resolve, its generated parts are up to date."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import runpy
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

import pytest

from vtoken_sdk.check import factory_of, run_checks

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
README = (ROOT / "README.md").read_text()
REFERENCE = ("vtoken_sdk.policy", "vtoken_sdk.runtime", "vtoken_sdk.check")
MAKES = {"make setup": "install.py", "make docs": "docs/build.py"}
HOME = "/home/you/kv"  # what the pages call the folder that a newcomer works in


def script(name: str) -> ModuleType:
    """docs/NAME.py as a module."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks(page: Path) -> list[tuple[str, str]]:
    """(language, text) of each fenced block, in order."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def commands(block: str) -> Iterator[tuple[str, str]]:
    """Each command of a console block, and what it is shown to print."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield command, shown


@dataclass
class Newcomer:
    """Works through a page, in one folder that is empty at first. Commands run in this process; a sweep's jobs have a fork server."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]
    written: list[str] = field(default_factory=list)
    failing: set[str] = field(default_factory=set)

    def work_through(self, page: Path) -> None:
        """Raises AssertionError where the page says something else than what happens."""
        printed = None
        for language, text in blocks(page):
            name = re.match(r"# (\w+\.py)\n", text)
            if language == "console":
                for command, shown in commands(text):
                    self.run(command, shown)
            elif language == "python" and name:
                (self.folder / name[1]).write_text(text)
                self.written.append(name[1])
            elif language == "python" and text not in {path.read_text() for path in self.folder.glob("*.py")}:
                printed = self.execute(text)
            elif language == "text":
                assert printed is not None, "a block of output without code in front of it"
                self.compare(shown=text, printed=printed, exact=False)
                printed = None
            else:
                assert language == "python", f"a block of {language or 'no language'} says nothing that is tested"

    def run(self, command: str, shown: str) -> None:
        program, *arguments = shlex.split(command)
        if program == "make":
            told = subprocess.run([program, *arguments, "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
            assert MAKES[command] in told or "Nothing to be done" in told
            return
        if "model=smollm2" in arguments:
            assert f"$ {command}\n" in README, "the README's tests run this command, so that it is run once"
            return
        expected = 1 if "FAILED" in shown else 3 if re.search("^failed: ", shown, re.MULTILINE) else 0
        code, printed = self.call(program, arguments) if program != "cat" else self.shell(command)
        assert code == expected, printed
        if code:
            self.failing |= {name for name in self.written if name in command}
        self.compare(shown, printed, exact=program in ("vtoken-new", "vtoken-check"))

    def call(self, program: str, arguments: list[str]) -> tuple[object, str]:
        (entry,) = entry_points(group="console_scripts", name=program)
        self.monkeypatch.setattr(sys, "argv", [program, *arguments])
        main: Callable[[], None] = entry.load()
        code: object = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        return code, "".join(self.capsys.readouterr())

    def shell(self, command: str) -> tuple[object, str]:
        done = subprocess.run(
            command, shell=True, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        return done.returncode, done.stdout

    def execute(self, text: str) -> str:
        path = self.folder / "script.py"
        path.write_text(text)
        runpy.run_path(str(path), run_name="__main__")
        path.unlink()
        return self.capsys.readouterr().out

    def compare(self, shown: str, printed: str, *, exact: bool) -> None:
        """Every part that is shown is printed, in this order. Unless `exact`, with other figures; those in lists may always differ."""
        left = self.plain(printed, exact=exact)
        for part in re.split(r"^\.\.\.$", shown, flags=re.MULTILINE):
            wanted = self.plain(part, exact=exact)
            assert wanted in left, f"the page shows\n{part}\nbut what is printed there is\n{printed}"
            left = left[left.index(wanted) + len(wanted) :]

    def plain(self, text: str, *, exact: bool) -> str:
        text = re.sub(r"jobs/\w{12}", "jobs/#", text.replace(str(self.folder), HOME))
        text = re.sub(r", about [\d.]+ \w+ left", "", text)  # told where it is worth telling
        text = re.sub(r"\[[\d, ]+\]" if exact else r"\d[\d,.]*", "#", text)
        return " ".join(re.sub("─+", " ", text).split())


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if page.parent == DOCS], ids=lambda page: page.stem)
def test_a_page_does_what_it_shows(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # to which a policy's folder is added
    for name, value in {"COLUMNS": "100", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}.items():
        monkeypatch.setenv(name, value)
    newcomer = Newcomer(tmp_path, monkeypatch, capsys)
    on_term = signal.getsignal(signal.SIGTERM)
    try:
        newcomer.work_through(page)
    finally:
        signal.signal(signal.SIGTERM, on_term)
    for name in newcomer.written:
        failed = {result.name: result.message for result in run_checks(factory_of(f"./{name}")) if result.status == "FAILED"}
        assert bool(failed) == (name in newcomer.failing), f"{name}: {failed}"


def test_policies_have_no_blocks_that_are_not_run() -> None:
    assert not [page for page in PAGES if page.parent != DOCS and blocks(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_links_resolve(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert links
    for link in links:
        path, _, anchor = link.partition("#")
        if "://" in link:
            assert re.fullmatch(r"https://arxiv\.org/abs/\d{4}\.\d{5}", link)
            continue
        target = page.parent / path if path else page
        assert target.is_file(), link
        headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
        slugs = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
        assert not anchor or anchor in slugs, link


def test_policy_pages_are_what_the_script_makes() -> None:
    made = script("make_pages").pages()
    assert set(made) == set((DOCS / "policies").glob("*.md")), "run docs/make_pages.py"
    for path, text in made.items():
        assert path.read_text() == text, f"{path.name}: run docs/make_pages.py"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation as HTML. A warning of the generator is an error."""
    folder = tmp_path_factory.mktemp("built")
    script("build").build(folder)
    return folder


@pytest.mark.parametrize("name", REFERENCE)
def test_every_public_name_is_in_the_reference_with_its_docstring(name: str, built: Path) -> None:
    module = importlib.import_module(name)
    own = [key for key, value in vars(module).items() if not key.startswith("_") and getattr(value, "__module__", "") == name]
    page = (built / "api" / f"{name.replace('.', '/')}.html").read_text()
    assert inspect.getdoc(module)
    for public in getattr(module, "__all__", own):
        value = getattr(module, public)
        assert f'id="{public}"' in page
        if not inspect.isclass(value) and not inspect.isroutine(value):
            continue
        assert value.__doc__, f"{name}.{public} has no docstring"
        options = getattr(value, "__dataclass_fields__", {})  # are in the docstring of the class
        for key, member in vars(value).items() if inspect.isclass(value) else ():
            if not key.startswith("_") and key not in options and inspect.isroutine(getattr(member, "__func__", member)):
                assert inspect.getdoc(getattr(value, key)), f"{name}.{public}.{key} has no docstring"


def test_links_of_the_built_pages_resolve(built: Path) -> None:
    pages = {path: path.read_text() for path in built.rglob("*.html")}
    assert len(pages) > len(PAGES)
    for path, text in pages.items():
        text = re.sub(r"<(style|script).*?</\1>", "", text, flags=re.DOTALL)
        for link in re.findall(r'href="([^"]+)"', text):
            target, _, anchor = link.partition("#")
            if "://" in link:
                continue
            file = (path.parent / target).resolve() if target else path
            assert file.is_file(), f"{path.relative_to(built)}: {link}"
            assert not anchor or file.suffix != ".html" or f'id="{anchor}"' in pages[file], f"{path.relative_to(built)}: {link}"

"""Builds the documentation as HTML: the pages of docs/, and the API reference from the docstrings.

    python docs/build.py FOLDER

Warnings of the generator (pdoc) are errors.
"""

from __future__ import annotations

import importlib
import re
import shutil
import sys
import warnings
from pathlib import Path

import pdoc
from pdoc import render
from pdoc.render_helpers import to_html

import vtoken_sdk

DOCS = Path(__file__).resolve().parent
MODULES = (
    "vtoken_sdk.policy",
    "vtoken_sdk.registry",
    "vtoken_sdk.runtime",
    "vtoken_sdk.runtime.model_loader",
    "vtoken_sdk.check",
)
LINK = re.compile(r"\]\((([^)#\s]*)(#[^)\s]*)?)\)")


def build(folder: Path) -> None:
    """All pages into `folder`. Raises ValueError for a link that leads nowhere."""
    render.configure(docformat="markdown", footer_text=f"vtoken-sdk {vtoken_sdk.__version__}", template_directory=DOCS / "theme")
    with warnings.catch_warnings(action="error"):
        build_api(folder / "api")
        for source in sorted(DOCS.rglob("*.md")):
            build_page(source, folder)


def build_api(folder: Path) -> None:
    """The reference: in a module with `__all__` those names, in others all that have no underscore in front."""
    for name in MODULES:
        module = importlib.import_module(name)
        for public in getattr(module, "__all__", ()):
            getattr(module, public)  # a name that is imported on first use is in the module only then
    pdoc.pdoc(*MODULES, output_directory=folder)


def build_page(source: Path, folder: Path) -> None:
    place = source.relative_to(DOCS)
    top = "../" * (len(place.parts) - 1)

    def built_link(found: re.Match[str]) -> str:
        """Pages lead to pages; other files of the project are copied along."""
        link, path, anchor = found.groups("")
        if "://" in link or not path:
            return found[0]
        target = (source.parent / path).resolve()
        if not target.is_file():
            raise ValueError(f"{source}: the link {link} leads to no file")
        if target.suffix == ".md" and target.is_relative_to(DOCS):
            return f"]({path.removesuffix('.md')}.html{anchor})"
        inside = target.relative_to(DOCS.parent)
        copy = folder / "source" / inside
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(target, copy)
        return f"]({top}source/{inside.as_posix()})"

    text = source.read_text(encoding="utf-8")
    body = to_html(LINK.sub(built_link, text))
    title = text.partition("\n")[0].removeprefix("# ")
    page = render.env.get_template("page.html.jinja2").render(title=title, body=body, top=top)
    target = folder / place.with_suffix(".html")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page, encoding="utf-8")


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    build(folder)
    print(f"Documentation: {folder / 'index.html'}")


if __name__ == "__main__":
    main()

"""The report as one HTML file with everything in it, no scripts, nothing loaded from elsewhere."""

from __future__ import annotations

from .document import Document


def to_html(document: Document) -> str:
    import jinja2

    loader = jinja2.PackageLoader("vtoken_sdk.templates", "")
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters["capitalized"] = lambda text: text[:1].upper() + text[1:]
    return environment.get_template("report.html").render(report=document)

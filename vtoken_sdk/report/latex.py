r"""The report as a LaTeX document that compiles as it is: booktabs tables that break over pages, each between two comments, to be copied.

It asks for array, booktabs, geometry and longtable, which every distribution has. Plots are in the HTML file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .document import Cell, Column, Document, Part, Table

WIDTH = 165  # characters of a row, in \scriptsize on a landscape page
WRAPPED = 44  # characters beyond which a cell of text is set as a paragraph
GAP = 3  # characters between two columns
HEAD = r"""\documentclass[10pt]{article}
\usepackage[utf8]{inputenc}
\usepackage[landscape,margin=1.5cm]{geometry}
\usepackage{array}
\usepackage{booktabs}
\usepackage{longtable}
\setlength{\parindent}{0pt}
\setlength{\parskip}{3pt}
\setlength{\tabcolsep}{3pt}
\setlength{\LTleft}{0pt}
\sloppy
\begin{document}
"""
# What LaTeX takes for a command, and signs that its fonts lack.
SPECIAL = {
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}"},
    **{c: rf"\{c}" for c in "&%$#_{}"},
    **{"±": r"\ensuremath{\pm}", "|": r"\textbar{}", '"': "{''}", "-": "{-}", "…": r"\ldots{}"},
}


def to_latex(document: Document) -> str:
    body = [HEAD, rf"\section*{{{escape(document.name)}}}", escape(document.subtitle), ""]
    body += [escape(sentence) + "\n" for sentence in document.verdict]
    body += [rf"\emph{{Note: {escape(caveat)}.}}" + "\n" for caveat in document.caveats]
    for number, part in enumerate(document.parts, start=1):
        body += [rf"\subsection*{{{number}. {escape(part.title)}}}", *_part(part)]
    return "\n".join([*body, r"\end{document}", ""])


def escape(text: str) -> str:
    """As text that prints as it is. Signs outside Latin-1 become a question mark: pdfLaTeX has no font for them."""
    words = [r"\allowbreak{}".join(_escaped(word[i : i + 16]) for i in range(0, len(word), 16)) for word in text.split()]
    plain = " ".join(words)
    return plain.encode("latin-1", "replace").decode("latin-1")


def _escaped(text: str) -> str:
    return "".join(SPECIAL.get(c, c) for c in text)


def _part(part: Part) -> Iterator[str]:
    for sentence in (*part.notes, part.reason):
        if sentence:
            yield escape(sentence) + "\n"
    for table in part.tables:
        for n, (columns, narrow) in enumerate(_fitting(table)):
            name = f"{part.id}{f' {table.title}' if table.title else ''}{f' ({n + 1})' if n else ''}"
            yield from ("", f"% table: {name}", *_table(table.title, columns, narrow), f"% end of table: {name}", "")
    if part.panels:
        yield (
            escape(f"Plots, in the HTML report: {', '.join(dict.fromkeys(p.title for panel in part.panels for p in panel.plots))}.") + "\n"
        )
    for command in part.code:
        yield rf"\texttt{{{escape(command)}}}" + "\n"


def _fitting(table: Table) -> Iterator[tuple[list[Column], list[list[list[Cell]]]]]:
    """The table in pieces that fit on a page, each with the columns of text in front."""
    widths = [
        max([len(line) for line in c.head.splitlines()] + [_width(row[i]) for row in table.rows]) + GAP for i, c in enumerate(table.columns)
    ]
    names = [i for i, column in enumerate(table.columns) if column.text]
    left = room = max(WIDTH - sum(widths[i] for i in names), 20)
    pieces: list[list[int]] = [[]]
    for i in (i for i in range(len(table.columns)) if i not in names):
        if widths[i] > left and pieces[-1]:
            pieces.append([])
            left = room
        pieces[-1].append(i)
        left -= widths[i]
    for piece in pieces:
        chosen = sorted([*names, *piece])
        yield [table.columns[i] for i in chosen], [[[row[i] for i in chosen] for row in group] for group in table.groups]


def _width(cell: Cell) -> int:
    return min(len(cell.text) + len(cell.below) * 3 // 4, WRAPPED)


def _table(title: str, columns: Sequence[Column], groups: Sequence[Sequence[Sequence[Cell]]]) -> list[str]:
    kinds = []
    for i, column in enumerate(columns):
        longest = max((len(row[i].flat) for group in groups for row in group), default=0)
        share = min(0.6, 0.9 / sum(c.text for c in columns)) if column.text else 0.0
        kinds.append(
            rf">{{\raggedright\arraybackslash}}p{{{share:.2f}\linewidth}}"
            if column.text and longest > WRAPPED
            else "l"
            if column.text
            else "r"
        )
    heads = " & ".join(_head(column) for column in columns)
    body = [rf"{' & '.join(map(_cell, row))} \\" for group in groups for row in group]
    ends = [sum(len(g) for g in groups[: n + 1]) for n in range(len(groups) - 1)]
    for end in reversed(ends):
        body.insert(end, r"\midrule")
    caption = [rf"\textbf{{{escape(title)}}}" + "\n"] if title else []
    return [
        *caption,
        r"{\scriptsize",
        rf"\begin{{longtable}}{{{''.join(kinds)}}}",
        rf"\toprule {heads} \\ \midrule \endhead",
        r"\bottomrule \endfoot",
        *body,
        r"\end{longtable}}",
    ]


def _head(column: Column) -> str:
    """The lines of a head one over the other."""
    lines = [escape(line) for line in column.head.splitlines()]
    if len(lines) == 1:
        return lines[0]
    stacked = r" \\ ".join(lines)
    return rf"\begin{{tabular}}[b]{{@{{}}{'l' if column.text else 'r'}@{{}}}}{stacked}\end{{tabular}}"


def _cell(cell: Cell) -> str:
    text = escape(cell.text)
    return rf"{text} {{\tiny {escape(cell.below)}}}" if cell.below else text

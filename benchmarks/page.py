"""The report as one HTML page that needs nothing from elsewhere: no script, no font, no image."""

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from benchmarks.figures import Chart, colour_variables, svg_of
from benchmarks.tables import Table

_STYLE = Path(__file__).with_name("page.css")
# Whatever a later change might load from elsewhere, browsers refuse, and say so on their console.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(
    *,
    title: str,
    findings: Sequence[str],
    charts: Sequence[Chart],
    hardware: str,
    tables: Sequence[Table],
    method: Sequence[str],
    attached: Mapping[str, bytes],
) -> str:
    """Return the page.

    Args:
        title: its heading.
        findings: sentences at its top.
        charts: in order; those without panels become the sentence that says why.
        hardware: that the charts' measurements were made on.
        tables: in order; empty ones are left out.
        method: paragraphs on how it was measured, and on what.
        attached: files by name, kept in the page as downloads.
    """
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>\n{_colours()}\n{_STYLE.read_text()}</style>",
            "</head>",
            "<body>",
            "<main>",
            f"<h1>{escape(title)}</h1>",
            _items(findings),
            *(_figure(chart, hardware) for chart in charts),
            *(_table(table) for table in tables if table.rows),
            "<h2>How it was measured</h2>",
            *(f"<p>{escape(paragraph)}</p>" for paragraph in method),
            "<h2>Raw data</h2>",
            f"<ul>{''.join(_download(*file) for file in attached.items())}</ul>",
            "</main>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _colours() -> str:
    light, dark = (
        " ".join(f"{name}: {colour};" for name, colour in colour_variables(dark=dark))
        for dark in (False, True)
    )
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"


def _items(sentences: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(sentence)}</li>' for sentence in sentences)}</ul>"


def _figure(chart: Chart, hardware: str) -> str:
    heading = f'<h2 id="{chart.name}">{escape(chart.title)}</h2>'
    if not chart.panels:
        return f"{heading}\n<p>{escape(chart.absent)}</p>"
    panels = "\n".join(svg_of(chart, number) for number in range(len(chart.panels)))
    return (
        f'{heading}\n<figure aria-labelledby="{chart.name}">\n'
        f"<figcaption>{escape(chart.caption)} Hardware: {escape(hardware)}.</figcaption>\n"
        f'<div class="panels" style="--columns: {chart.columns}">\n{panels}\n</div>\n</figure>'
    )


def _table(table: Table) -> str:
    head = "".join(
        f'<th scope="col"{_kind(table, column)}>{escape(name)}</th>'
        for column, name in enumerate(table.head)
    )
    rows = "\n".join(_row(table, row) for row in table.rows)
    # Focusable, so that the keyboard can scroll it too.
    return (
        f"<h2>{escape(table.title)}</h2>\n"
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}">\n'
        f'<table aria-label="{escape(table.title)}">\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody>\n</table>\n</div>"
    )


def _row(table: Table, row: Sequence[str]) -> str:
    first, *others = row
    cells = "".join(
        f"<td{_kind(table, column)}>{escape(cell)}</td>"
        for column, cell in enumerate(others, start=1)
    )
    return f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>'


def _kind(table: Table, column: int) -> str:
    return ' class="number"' if column >= table.left else ""


def _download(name: str, content: bytes) -> str:
    encoded = base64.b64encode(content).decode()
    return (
        f'<li><a download="{escape(name)}" href="data:application/octet-stream;base64,{encoded}">'
        f"{escape(name)}</a>, {len(content):,} bytes</li>"
    )

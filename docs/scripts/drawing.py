"""A few shapes as SVG that is legible on light and dark pages alike."""

from html import escape

_STYLE = """
  .page { fill: #ffffff } .box { fill: #f3f5f8; stroke: #c5cdd6 } .ink { fill: #1f2328 }
  .soft { fill: #57606a } .line { stroke: #57606a; fill: none } .head { fill: #57606a }
  .work { fill: #cfe3fb; stroke: #7fb0e8 } .talk { fill: #fbd3a7; stroke: #e09a4a }
  .hold { fill: #d5ecd4; stroke: #86bd84 }
  @media (prefers-color-scheme: dark) {
    .page { fill: #12161c } .box { fill: #1d232c; stroke: #444d58 } .ink { fill: #e6edf3 }
    .soft { fill: #9aa4af } .line { stroke: #9aa4af } .head { fill: #9aa4af }
    .work { fill: #1c3f66; stroke: #3f78b5 } .talk { fill: #6b4415; stroke: #b07a2e }
    .hold { fill: #234a26; stroke: #4d8a51 }
  }
"""


class Drawing:
    """Shapes in pixels from the top left; `kind` is a class of the style above."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._width, self._height, self._title = width, height, title
        self._shapes: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, kind: str = "box") -> None:
        """Add a rectangle with round corners."""
        self._shapes.append(
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
            'rx="4"/>'
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        kind: str = "ink",
        size: int = 14,
        at: str = "middle",
    ) -> None:
        """Add one line of text; `at` is where x is in it: start, middle or end."""
        self._shapes.append(
            f'<text class="{kind}" x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{at}">'
            f"{escape(words)}</text>"
        )

    def card(self, x: float, y: float, width: float, height: float, *lines: str, kind: str) -> None:
        """Add a box with a heading and smaller lines in its middle."""
        self.box(x, y, width, height, kind)
        top = y + height / 2 - 8.5 * (len(lines) - 1) + 5
        for index, line in enumerate(lines):
            self.text(x + width / 2, top + 17 * index, line, size=14 if index == 0 else 12)

    def arrow(self, x: float, y: float, to_x: float, to_y: float) -> None:
        """Add a line with a head at its end."""
        self._shapes.append(
            f'<line class="line" x1="{x:g}" y1="{y:g}" x2="{to_x:g}" y2="{to_y:g}" '
            'stroke-width="1.5" marker-end="url(#head)"/>'
        )

    def svg(self) -> str:
        """Return the file's text."""
        shapes = "\n".join(f"  {shape}" for shape in self._shapes)
        return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self._width} {self._height}" \
width="{self._width}" height="{self._height}" role="img" font-family="system-ui, sans-serif">
  <title>{escape(self._title)}</title>
  <style>{_STYLE}  </style>
  <defs><marker id="head" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto">\
<path class="head" d="M0,0 L9,4 L0,8 z"/></marker></defs>
  <rect class="page" width="{self._width}" height="{self._height}" rx="6"/>
{shapes}
</svg>
"""

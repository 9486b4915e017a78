"""Style of figures: colours and markers by compiler, dashes by series; render reproducible SVG and PNG.

Importing matplotlib is slow, so it waits until something is drawn.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

INK, FAINT, PAPER = "#24292f", "#d4d9df", "#ffffff"
"""Text and axes, grid lines, background. A page replaces the first two by its own."""
_COMPILERS = {
    "identity": ("#767d86", "o"),
    "torchscript": ("#56B4E9", "s"),
    "torch-compile": ("#E69F00", "^"),
    "onnxruntime": ("#009E73", "D"),
    "openvino": ("#1f77c9", "v"),
    "tvm": ("#CC79A7", "P"),
    "tensorrt": ("#D55E00", "X"),
}
"""Okabe and Ito's colours for the colour-blind; markers distinguish compilers without colour."""
_OTHERS = (("#8c6bb1", "<"), ("#a6611a", ">"), ("#b2912f", "h"), ("#4d9221", "p"))
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (5, 2, 1, 2)))
_FAMILIES = ("#1f77c9", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#8c6bb1", "#a6611a", "#767d86")
_SALT = "mlflow-ngraph"
WIDTH = 9.6
"""Width of every figure in inches."""
_DPI = 150


@dataclass(frozen=True)
class Look:
    """Style of a line."""

    colour: str
    marker: str
    dashes: Any = "-"
    """Line style of matplotlib."""


def looks(series: Sequence[tuple[str, str]]) -> dict[str, Look]:
    """Style of each series.

    Parameters
    ----------
    series : Sequence[tuple[str, str]]
        Names with compilers. Series of one compiler differ only in their dashes.
    """
    styles: dict[str, Look] = {}
    seen: dict[str, int] = {}
    for name, compiler in series:
        index = seen.get(compiler, 0)
        seen[compiler] = index + 1
        colour, marker = of_compiler(compiler)
        styles[name] = Look(colour, marker, _DASHES[index % len(_DASHES)])
    return styles


def of_compiler(compiler: str) -> tuple[str, str]:
    """Colour and marker of a compiler; constant for compilers of other packages, too."""
    return _COMPILERS.get(compiler) or _OTHERS[zlib.crc32(compiler.encode()) % len(_OTHERS)]


def of_family(place: int) -> str:
    """Colour of a family of models by its position."""
    return _FAMILIES[place % len(_FAMILIES)]


@contextmanager
def drawing() -> Iterator[None]:
    """Context with matplotlib's settings."""
    import matplotlib as mpl

    settings = {
        "axes.axisbelow": True,
        "axes.edgecolor": INK,
        "axes.grid": True,
        "axes.labelcolor": INK,
        "axes.labelsize": 8.5,
        "axes.linewidth": 0.7,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlecolor": INK,
        "axes.titlesize": 9,
        "axes.titleweight": "bold",
        "axes.unicode_minus": True,
        "figure.dpi": 100,
        "figure.facecolor": PAPER,
        "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"],
        "font.size": 8.5,
        "grid.color": FAINT,
        "grid.linewidth": 0.5,
        "hatch.linewidth": 0.6,
        "legend.fontsize": 8.5,
        "legend.frameon": False,
        "legend.labelcolor": INK,
        "lines.linewidth": 1.4,
        "lines.markersize": 4,
        "path.simplify": True,
        "svg.fonttype": "none",
        "svg.hashsalt": _SALT,
        "text.color": INK,
        # Names of models and compilers are plain text.
        "text.parse_math": False,
        "xtick.color": INK,
        "xtick.labelsize": 7.5,
        "ytick.color": INK,
        "ytick.labelsize": 7.5,
    }
    with mpl.rc_context():
        mpl.rcdefaults()
        parameters: Any = mpl.rcParams
        parameters.update(settings)
        yield


def canvas(height: float) -> Canvas:
    """Empty figure with automatic layout."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def svg(figure: Canvas) -> str:
    """Render SVG."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    # `savefig` would draw everything twice, for the layout first.
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine("none")
    stream = io.StringIO()
    drawn: Any = FigureCanvasSVG(figure)
    drawn.print_svg(stream, metadata={"Date": None, "Creator": None})
    return stream.getvalue()


def png(figure: Canvas) -> bytes:
    """Render a laid-out figure as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    stream = io.BytesIO()
    figure.set_dpi(_DPI)
    drawn: Any = FigureCanvasAgg(figure)
    drawn.print_png(stream, metadata={"Software": None})
    return stream.getvalue()


def inline(text: str, key: str) -> str:
    """Embed an SVG in a page, with the page's colours and with ids that start with the unique ``key``."""
    body = text[text.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'<g id="[^"]*">', "<g>", body)
    body = re.sub(r'\bid="([^"]+)"', rf'id="{key}-\1"', body)
    body = re.sub(r'(xlink:href|href)="#([^"]+)"', rf'\1="#{key}-\2"', body)
    body = re.sub(r"url\(#([^)]+)\)", rf"url(#{key}-\1)", body)
    # The background is the page's own.
    body = body.replace(f"fill: {PAPER}", "fill: none").replace(INK, "currentColor").replace(FAINT, "var(--faint)")
    head, _, rest = body.partition(">")
    head = re.sub(r'\s(width|height)="[^"]*"', "", head)
    return f'{head} role="img" aria-labelledby="{key}-what">{rest}'

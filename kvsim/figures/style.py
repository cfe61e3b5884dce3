"""How every figure looks: sizes, colours, markers, the grid of panels, and the bytes of a file.

Print sizes are real: a figure is drawn at the width at which it is printed, with no text below
7 points and fonts embedded. Colours come from Okabe and Ito's palette as seaborn tunes it
("colorblind"), and a policy has a marker too, so that neither colour vision nor a colour printer
is needed. No global pyplot state is used, and files carry no time, so that the same rows give the
same bytes.
"""

from __future__ import annotations

import io
import math
import textwrap
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib
import matplotlib.style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from kvsim.figures import _rows

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

COLUMN_IN = 3.4
"""Width of a figure that fits one column of a paper, in inches."""
PAGE_IN = 7.0
"""Width of a figure that fits a page, in inches."""
DPI = 200
OUTSIDE_IN = 0.9
"""Height of what stands above and below the panels, in inches."""
TEXT_PT = 7.0
INK = "#333333"
PALE = "#c8c8c8"


class Look(NamedTuple):
    """Colour of a policy, and its marker as ``Axes.plot`` takes it: a letter or a star's tuple."""

    color: str
    marker: Any


POLICIES = {
    "streaming_llm": Look("#000000", "P"),
    "h2o": Look("#0173b2", "o"),
    "h2o_age": Look("#56b4e9", "s"),
    "tova": Look("#029e73", "D"),
    "snapkv": Look("#d55e00", "^"),
    "knorm": Look("#cc78bc", "v"),
    "random": Look("#949494", "X"),
    "keydiff": Look("#de8f05", "<"),
    "paged_eviction": Look("#ca9161", ">"),
    "chunkkv": Look("#882255", "p"),
}
"""Look of each policy that the project ships, in the order of the legend."""

SPARE_COLORS = ("#4b0092", "#117733", "#a50026", "#7f6000", "#004488")
SPARE_MARKERS = ("*", "d", (6, 1, 0), (4, 1, 0), (3, 1, 0))
"""What other policies get: none of it is used above, so a user's own file is never mistaken."""

RC: dict[str, Any] = {
    "pdf.fonttype": 42,
    "font.family": "DejaVu Sans",
    "font.size": TEXT_PT,
    "axes.titlesize": TEXT_PT,
    "axes.labelsize": TEXT_PT,
    "xtick.labelsize": TEXT_PT,
    "ytick.labelsize": TEXT_PT,
    "legend.fontsize": TEXT_PT,
    "figure.labelsize": TEXT_PT,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.edgecolor": PALE,
    "axes.linewidth": 0.6,
    "xtick.bottom": True,
    "ytick.left": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#ececec",
    "grid.linewidth": 0.5,
    "xtick.major.size": 2.0,
    "ytick.major.size": 2.0,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.pad": 2.0,
    "ytick.major.pad": 2.0,
    "lines.linewidth": 0.9,
    "lines.markersize": 3.5,
    "lines.markeredgewidth": 0.6,
    "legend.frameon": False,
    "legend.handlelength": 2.4,
    "legend.columnspacing": 1.4,
    "figure.dpi": DPI,
    "savefig.dpi": DPI,
}


@contextmanager
def context() -> Iterator[None]:
    """Hold the settings of this room, whatever a user's matplotlibrc says, and put theirs back."""
    # Imported here, because seaborn takes a second and only drawing needs it.
    import seaborn

    with matplotlib.style.context(["default", seaborn.axes_style("whitegrid"), RC]):
        yield


def looks(policies: Iterable[str]) -> dict[str, Look]:
    """Look of each policy, in the order of the legend.

    An unknown policy gets a look that follows from its name alone, so that it is the same in every
    figure; only where two unknown names in one figure meet does the later one (by name) move on.

    Parameters
    ----------
    policies : iterable of str
        Names; repeated ones count once.
    """
    names = set(policies)
    found = {name: look for name, look in POLICIES.items() if name in names}
    spare = [Look(color, marker) for marker in SPARE_MARKERS for color in SPARE_COLORS]
    taken: set[Look] = set()
    for name in sorted(names - set(found)):
        start = zlib.crc32(name.encode())
        turn = [spare[(start + step) % len(spare)] for step in range(len(spare))]
        # With more strangers than spare looks some must share one; the hash decides which.
        found[name] = next((look for look in turn if look not in taken), turn[0])
        taken.add(found[name])
    return found


def label(policy: str) -> str:
    """Name to print: a policy file by its stem, and no sign that would start a formula."""
    name = PurePath(policy).stem if policy.endswith(".py") else policy
    return name.replace("$", r"\$")


def grid(
    rows: int,
    columns: int,
    panel_in: float,
    x: Sequence[float],
    y: Sequence[float],
    width: float | None = None,
) -> tuple[Figure, list[list[Axes]]]:
    """Return a figure of equal panels with the same axes, as wide as its columns need.

    Parameters
    ----------
    rows, columns : int
        Number of panels.
    panel_in : float
        Height of a panel in inches.
    x, y : sequence of float
        Values that the axes must cover, besides a margin.
    width : float, optional
        Width of the figure in inches, where the number of columns does not decide it.

    Returns
    -------
    tuple of Figure and list of list of Axes
        ``axes[row][column]``.
    """
    width = width or (COLUMN_IN if columns <= 2 else PAGE_IN)
    engine = ConstrainedLayoutEngine(w_pad=0.03, h_pad=0.03, wspace=0.02, hspace=0.02)
    figure = Figure(figsize=(width, rows * panel_in + OUTSIDE_IN), layout=engine)
    FigureCanvasAgg(figure)
    panels = [list(line) for line in figure.subplots(rows, columns, squeeze=False)]
    for i, line in enumerate(panels):
        for j, axes in enumerate(line):
            # Limits are set once and not shared: shared axes make every plot call visit all panels.
            axes.set_xlim(*_limits(x))
            axes.set_ylim(*_limits(y))
            axes.autoscale(False)
            axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
            axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
            axes.tick_params(labelbottom=i == rows - 1, labelleft=j == 0)
    return figure, panels


def _limits(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    # A single value still needs an axis to stand on.
    margin = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    return low - margin, high + margin


def log_axis(axis: Any, values: Sequence[float], base: int) -> None:
    """Make one axis of a panel logarithmic, over these values and a margin.

    Values of which one is not positive leave it linear.
    """
    low, high = min(values), max(values)
    if low <= 0:
        return
    margin = (high / low) ** 0.06 if high > low else 1.2
    vertical = axis.axis_name == "y"
    set_scale = axis.axes.set_yscale if vertical else axis.axes.set_xscale
    set_scale("log", base=base)
    (axis.axes.set_ylim if vertical else axis.axes.set_xlim)(low / margin, high * margin)
    axis.set_major_locator(LogLocator(base, numticks=5))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))


def row_label(axes: Axes, text: str) -> None:
    """Name a row of panels at its right end, where no axis stands."""
    axes.text(1.04, 0.5, text, transform=axes.transAxes, rotation=270, va="center", ha="left")


def x_title(figure: Figure, text: str, settings: str) -> None:
    """Title the horizontal axes, and say beneath for which settings the figure holds."""
    # A letter of this font is 0.6 of its height wide at most, on average.
    letters = int(figure.get_figwidth() * 72 / (0.6 * TEXT_PT))
    figure.supxlabel("\n".join([text, *textwrap.wrap(f"({settings})", letters)]))


def empty(axes: Axes) -> None:
    """Say that a panel has nothing to show, which blank space would leave open."""
    note(axes, "no completed\nrow")


def note(axes: Axes, text: str) -> None:
    """Say something in the middle of a panel where nothing is drawn."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, va="center", ha="center", color="#767676")


def ideal_line(axes: Axes) -> None:
    """Draw y = x, wide and pale, so that it is seen beneath series that lie on it."""
    axes.plot([-1, 2], [-1, 2], color=PALE, linewidth=3.0, zorder=1)


def series(axes: Axes, points: Sequence[_rows.Point], look: Look, **line: Any) -> None:
    """Draw the means, with a band from least to greatest where seeds differ.

    Parameters
    ----------
    axes : Axes
        Panel.
    points : sequence of Point
        In the order in which they are connected.
    look : Look
        Colour and marker.
    **line
        Anything that ``Axes.plot`` takes and that overrides the look.
    """
    xs = [point.x for point in points]
    if any(point.y_low < point.y_high for point in points):
        low, high = [point.y_low for point in points], [point.y_high for point in points]
        axes.fill_between(xs, low, high, color=look.color, alpha=0.2, linewidth=0, zorder=2)
    wide = [point for point in points if point.x_low < point.x_high]
    if wide:
        lows, highs = [point.x_low for point in wide], [point.x_high for point in wide]
        axes.hlines([p.y for p in wide], lows, highs, color=look.color, linewidth=0.5)
    style = {"color": look.color, "marker": look.marker, "markerfacecolor": "white", "zorder": 3}
    axes.plot(xs, [point.y for point in points], **{**style, **line})


def coinciding(axes: Axes, lines: Sequence[Sequence[_rows.Point]]) -> None:
    """Say how many series lie on one another where three or more do, since one hides the rest."""
    span_x, span_y = (high - low for low, high in (axes.get_xlim(), axes.get_ylim()))
    groups: list[list[Sequence[_rows.Point]]] = []
    for line in filter(None, lines):
        for group in groups:
            first = group[0]
            if len(first) == len(line) and all(
                abs(a.x - b.x) < 0.02 * span_x and abs(a.y - b.y) < 0.02 * span_y
                for a, b in zip(first, line, strict=True)
            ):
                group.append(line)
                break
        else:
            groups.append([line])
    for group in groups:
        if len(group) >= 3:
            at = group[0][len(group[0]) // 2]
            # Above what lies at the bottom, below everything else: clear of line and panel edge.
            low = at.y - axes.get_ylim()[0] < 0.2 * span_y
            axes.annotate(
                f"{len(group)} coincide",
                (at.x, at.y),
                xytext=(0, 4) if low else (4, -4),
                textcoords="offset points",
                ha="center" if low else "left",
                va="bottom" if low else "top",
            )


def finish(figure: Figure, handles: Sequence[Artist]) -> None:
    """Put the legend above the panels, outside the data, and settle the layout."""
    most = 4 if figure.get_figwidth() > COLUMN_IN else 2
    columns = math.ceil(len(handles) / math.ceil(len(handles) / most))
    labels = [str(handle.get_label()) for handle in handles]
    figure.legend(handles=handles, labels=labels, loc="outside upper center", ncols=columns)
    # One layout for all files: it costs as much as drawing, and a PDF must not differ from its PNG.
    engine = figure.get_layout_engine()
    if engine is not None:
        # Inner panels have ticks without labels, which need no room and take the layout's time.
        bare = [axis for axes in figure.axes for axis in _bare(axes)]
        for axis in bare:
            axis.set_visible(False)
        engine.execute(figure)
        for axis in bare:
            axis.set_visible(True)
    figure.set_layout_engine("none")


def _bare(axes: Axes) -> list[Any]:
    """Return the axes' own axes that have no tick labels."""
    sides = ((axes.xaxis, "labelbottom"), (axes.yaxis, "labelleft"))
    return [axis for axis, side in sides if not axis.get_tick_params()[side]]


def policy_handles(found: dict[str, Look]) -> list[Line2D]:
    """Legend entries of policies."""
    return [
        Line2D(
            [], [], color=look.color, marker=look.marker, markerfacecolor="white", label=label(name)
        )
        for name, look in found.items()
    ]


def ideal_handle(text: str) -> Line2D:
    """Legend entry of the ideal line."""
    return Line2D([], [], color=PALE, linewidth=3.0, label=text)


def render(figure: Figure, kind: str) -> bytes:
    """Bytes of a figure as ``pdf`` or ``png``, without time or version of the software."""
    metadata = {"pdf": {"CreationDate": None, "Producer": None, "Creator": None}}
    file = io.BytesIO()
    figure.savefig(file, format=kind, dpi=DPI, metadata=metadata.get(kind, {"Software": None}))
    return file.getvalue()


def policy_grid(
    data: Sequence[Mapping[str, Any]], x: str, y: str, x_label: str, y_label: str, ideal: str
) -> Figure:
    """Fractions against fractions: a column per granularity, a row per (sets, scope).

    Parameters
    ----------
    data : sequence of mapping
        What the figure's ``select`` returned.
    x, y : str
        Columns to draw; both are fractions.
    x_label, y_label : str
        Titles of the axes.
    ideal : str
        What the line y = x means, for the legend.
    """
    columns, pairs = _rows.granularities(data), _rows.pairs(data)
    found = looks(row["policy"] for row in data)
    xs, ys = [row[x] for row in data], [row[y] for row in data]
    figure, axes = grid(len(pairs), len(columns), 1.25, xs, [0.0, 1.0, *ys])
    for i, (sets, scope) in enumerate(pairs):
        for j, granularity in enumerate(columns):
            panel = _rows.where(data, sets=sets, scope=scope, granularity=granularity)
            ideal_line(axes[i][j])
            lines = {p: _rows.points(_rows.where(panel, policy=p), x, y) for p in found}
            for policy, points in lines.items():
                series(axes[i][j], points, found[policy])
            coinciding(axes[i][j], list(lines.values()))
            if not panel:
                empty(axes[i][j])
        row_label(axes[i][-1], f"{sets} sets,\n{scope} scope")
    for j, granularity in enumerate(columns):
        axes[0][j].set_title(granularity)
    figure.supylabel(y_label)
    x_title(figure, x_label, _rows.settings(data))
    finish(figure, [*policy_handles(found), ideal_handle(ideal)])
    return figure

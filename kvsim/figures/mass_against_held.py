"""At equal held bytes, which granularity keeps more of the attention?

One row of panels per policy, one column per (sets, scope); in a panel one line per granularity over
the budgets, so that the orders of deciding (pages beforehand, or page completion after token
victims) are compared at equal held bytes by looking up from one place on the axis. Where sets are
finer than the scope, equal budgets hold unequal bytes: those pairs stand last, on tinted panels.
No line leaves its policy or its panel. tova scores by the very row that retained_mass sums, which
flatters it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvsim.figures import _rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "mass_against_held"
DRAWN = ("held_bytes", "retained_mass", "dense_bytes")
ALSO = ("held_fraction", "charged_fraction")
COLUMNS = (*_rows.IDENTITY, *ALSO, "retained_mass", "dense_bytes", "held_bytes", "held_mib")
MIB = 2**20

LINES: dict[str, dict[str, Any]] = {
    "window": {"linestyle": "-", "linewidth": 2.6, "alpha": 0.35, "marker": ""},
    "token": {"linestyle": ":"},
    "page": {"linestyle": "-", "filled": True},
    "page_completion": {"linestyle": "--"},
}
"""How a granularity is drawn, in drawing order: window lies wide and pale beneath page, because
runs of one page's length choose the same victims and the two lines coincide."""

DENSE: dict[str, Any] = {"color": "#333333", "linewidth": 0.6, "linestyle": (0, (1, 2))}
TINT = "#f4f1e8"


def select(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Completed rows, with the attention mass retained and the bytes held."""
    shown = _rows.select(NAME, rows, DRAWN)
    data = _rows.flat(shown, (*ALSO, *DRAWN), held_mib=lambda row: row["held_bytes"] / MIB)
    return [{column: row[column] for column in COLUMNS} for row in data]


def draw(data: Sequence[Mapping[str, Any]]) -> Figure:
    """Grid of policies by (sets, scope)."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    from kvsim.figures import style

    found = style.looks(row["policy"] for row in data)
    columns, kinds = _rows.pairs(data), _rows.granularities(data)
    # Known granularities in the order of LINES; others follow, drawn as token is.
    kinds = [kind for kind in LINES if kind in kinds] + [k for k in kinds if k not in LINES]
    held = [row["held_mib"] for row in data] + [row["dense_bytes"] / MIB for row in data]
    mass = [row["retained_mass"] for row in data]
    figure, axes = style.grid(len(found), len(columns), 1.05, held, [1.0, *mass])
    for i, (policy, look) in enumerate(found.items()):
        for j, (sets, scope) in enumerate(columns):
            panel = _rows.where(data, policy=policy, sets=sets, scope=scope)
            if _rows.finer(sets, scope):
                axes[i][j].set_facecolor(TINT)
            if not panel:
                style.empty(axes[i][j])
            for dense in {row["dense_bytes"] for row in panel}:
                axes[i][j].axvline(dense / MIB, **DENSE)
            for kind in kinds:
                line = _rows.points(
                    _rows.where(panel, granularity=kind), "held_mib", "retained_mass"
                )
                style.series(axes[i][j], line, look, **_line(kind, look.color))
        style.row_label(axes[i][-1], style.label(policy))
    for j, (sets, scope) in enumerate(columns):
        axes[0][j].set_title(f"{sets} sets,\n{scope} scope")
    figure.supylabel("Retained attention mass")
    style.x_title(figure, "Held bytes, MiB", _rows.settings(data))
    handles: list[Any] = [
        Line2D([], [], label=kind, **{"color": style.INK, "marker": "o", **_line(kind, style.INK)})
        for kind in kinds
    ]
    handles.append(Line2D([], [], label="held by the dense cache", **DENSE))
    if any(_rows.finer(*pair) for pair in columns):
        handles.append(Patch(facecolor=TINT, edgecolor=style.PALE, label="sets finer than scope"))
    style.finish(figure, handles)
    return figure


def _line(kind: str, color: str) -> dict[str, Any]:
    line = {**LINES.get(kind, LINES["token"])}
    line["markerfacecolor"] = color if line.pop("filled", False) else "white"
    return line

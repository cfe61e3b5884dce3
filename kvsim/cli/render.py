"""What the commands print: tables, progress, one line of summary. No number is computed here."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kvsim.cli.bars import Bars, bars
from kvsim.cli.columns import Form, Row, form_of
from kvsim.errors import FigureError, ResultsError
from kvsim.lab.progress import watched_by


def _cells(form: Form, row: Row) -> list[str]:
    settings = [show(row) for _, show in form.columns[: form.settings]]
    if row["outcome"] != "completed":
        return [*settings, f"{row['outcome']}: {row['outcome_reason']}"]
    return settings + [show(row) for _, show in form.columns[form.settings :]]


def _console(stderr: bool = False) -> Console:
    # Reasons and names hold brackets and colons, which rich would read as markup and emoji.
    console = Console(stderr=stderr, markup=False, emoji=False)
    if not console.is_terminal:
        # A pipe has no width; rich would fold the table into 80 columns.
        console = Console(stderr=stderr, markup=False, emoji=False, width=160)
    return console


def choose(rows: Sequence[Row], where: Mapping[str, Sequence[Any]]) -> list[Row]:
    """Return the rows that a sweep's [table] asks for, in their order."""
    from kvsim.policies import short_name

    columns = {
        "pages.tokens": "page_tokens",
        "pages.scope": "scope",
        "policy.name": "policy",
        "budget.fraction": "budget_fraction",
        "budget.tokens": "budget_tokens",
        "compaction.algorithm": "compaction",
        "compaction.unit": "compaction_unit",
        "compaction.positions": "positions",
        "workload.kind": "workload",
        "store.kind": "store",
    }
    wanted = {columns.get(k, k.rsplit(".", 1)[-1]): values for k, values in where.items()}
    if "policy" in wanted:
        wanted["policy"] = [short_name(str(name)) for name in wanted["policy"]]
    return [row for row in rows if all(row[key] in values for key, values in wanted.items())]


def _varying(form: Form, rows: Sequence[Row]) -> list[int]:
    """Return the columns to print: settings behind the first three only where rows differ.

    What is mapped is printed where any row has a physical model.
    """
    modelled = any(row["mapped_bytes"] is not None for row in rows)
    keep = []
    for index, (heading, show) in enumerate(form.columns):
        if 3 <= index < form.settings and len({show(row) for row in rows}) == 1:
            continue
        if heading == "mapped" and not modelled:
            continue
        keep.append(index)
    return keep


def print_table(rows: Sequence[Row], total: int) -> None:
    """Print the rows of a sweep as a table; refused and failed runs say why."""
    console = _console()
    if not rows:
        console.print("no rows to show")
        return
    form = form_of(rows)
    keep = _varying(form, rows)
    fixed = [
        f"{heading} {show(rows[0])}"
        for index, (heading, show) in enumerate(form.columns)
        if index not in keep and heading in form.said and show(rows[0]) != "none"
    ]
    head = f"{len(rows)} of {total} rows"
    table = Table(title=", ".join([head, *fixed]), title_justify="left", header_style="bold")
    for index in keep:
        table.add_column(form.columns[index][0], justify="left" if index < 3 else "right")
    for row in rows:
        cells = _cells(form, row)
        if row["outcome"] != "completed":
            names = [cells[i] for i in keep if i < form.settings]
            table.add_row(*names, cells[-1].split(":")[0])
        else:
            table.add_row(*[cells[i] for i in keep])
    console.print(table)
    for note in notes(rows):
        console.print(note, highlight=False)


def notes(rows: Sequence[Row]) -> list[str]:
    """Return what must be said beside the table."""
    lines = []
    counted = {row["layers_counted"] for row in rows if row["layers_counted"]}
    for part in sorted(counted):
        have, whole = part.split("/")
        if have != whole:
            lines.append(
                f"Counted: {have} of the model's {whole} layers, from the reduced recording in "
                "the package (float16, every third layer)."
            )
    if any(row["policy"] == "tova" for row in rows):
        lines.append("tova scores by the very attention row that `mass kept` is measured with.")
    reasons = sorted({row["outcome_reason"] for row in rows if row["outcome"] != "completed"})
    return lines + [f"Not completed: {reason}" for reason in reasons]


def markdown(rows: Sequence[Row]) -> str:
    """Return the table of a sweep as Markdown, with its notes."""
    form = form_of(rows)
    keep = _varying(form, rows)
    lines = [
        "| " + " | ".join(form.columns[i][0] for i in keep) + " |",
        "|" + "|".join("---" if i < 3 else "--:" for i in keep) + "|",
    ]
    for row in rows:
        cells = _cells(form, row)
        if row["outcome"] != "completed":
            cells = [*cells[: form.settings], cells[form.settings].split(":")[0]]
            cells += [""] * (len(form.columns) - len(cells))
        lines.append("| " + " | ".join(cells[i] for i in keep) + " |")
    return "\n".join([*lines, "", *notes(rows)]) + "\n"


def write_markdown(rows: Sequence[Row], path: Path) -> None:
    """Write the table of a sweep beside its rows."""
    if rows:
        try:
            path.write_text(markdown(rows), encoding="utf-8")
        except OSError as error:
            raise ResultsError(f"{path.name}: {error.strerror}") from None


def check_figures(names: Sequence[str] | None) -> None:
    """Refuse a figure that does not exist before anything runs for it."""
    from kvsim.figures import FIGURES

    for name in names or ():
        if name not in FIGURES:
            raise FigureError(f"figures: unknown figure {name!r}; there is {', '.join(FIGURES)}")


def draw_figures(rows: Sequence[Row], out: Path, names: Sequence[str] | None = None) -> list[Path]:
    """Draw figures of a sweep into its results folder; say on stderr which cannot be drawn."""
    from kvsim.figures import FIGURES, draw

    console = _console(stderr=True)
    drawn: list[Path] = []
    wanted = list(FIGURES if names is None else names)
    with progress("figures") as step:
        for number, name in enumerate(wanted, start=1):
            try:
                drawn += draw(name, rows, out / "figures", out)
            except FigureError as error:
                if names is not None:
                    console.print(f"figure {name} not drawn: {error}", highlight=False)
            step(number, len(wanted))
    return drawn


def print_summary(summary: Any, scenarios: int, out: Path, drawn: Sequence[Path]) -> None:
    """Print what a sweep did and where its results are."""
    console = _console()
    console.print(
        f"{scenarios} scenarios: {summary.run} run now, {summary.skipped} found done, "
        f"{summary.failed} failed. Rows: {out / 'rows.jsonl'}",
        highlight=False,
        soft_wrap=True,
    )
    if drawn:
        names = ", ".join(sorted({path.stem for path in drawn}))
        console.print(f"Figures in {drawn[0].parent}: {names}", highlight=False, soft_wrap=True)


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on a terminal's stderr; yields a function of (done, total)."""
    with watch(what) as shown:
        yield functools.partial(shown.tell, what)


@contextmanager
def watch(what: str | None, shown: bool = True) -> Iterator[Bars]:
    """Show a bar for the whole, if it has a name, and one for each part that tells of itself."""
    with bars(_console(stderr=True), shown, transient=what is None) as made:
        if what is not None:
            made.begin(what)
        with watched_by(made.tell if made.shown else None):
            yield made


def print_row(row: Row) -> None:
    """Print one row, a column a line."""
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for key, value in row.items():
        shown = f"{value:.6f}" if isinstance(value, float) else "-" if value is None else str(value)
        table.add_row(key, shown)
    _console().print(table)


def print_policies(entries: Sequence[Mapping[str, Any]]) -> None:
    """Print the policies."""
    table = Table(header_style="bold")
    for heading in ("name", "reads", "sets", "parameters", "paper", "what it does"):
        table.add_column(heading)
    for e in entries:
        parameters = ", ".join(f"{k}={v}" for k, v in e["parameters"].items())
        paper = e["paper"] + (" (reconstructed)" if e["reconstructed"] else "")
        table.add_row(
            e["name"],
            ", ".join(e["signals"]) or "positions",
            ", ".join(e["sets"]),
            parameters,
            paper,
            e["summary"],
        )
    _console().print(table)


def print_layouts(entries: Sequence[Mapping[str, Any]]) -> None:
    """Print the catalogue."""
    table = Table(header_style="bold")
    for heading in ("name", "layers", "kinds", "bytes/token", "beyond windows", "bounded bytes"):
        table.add_column(heading, justify="left" if heading in ("name", "kinds") else "right")
    table.add_column("verified")
    for e in entries:
        below, marginal, bounded = (
            "-" if e[k] is None else f"{e[k]:,.0f}"
            for k in (
                "bytes_per_token_below_window",
                "marginal_bytes_per_token",
                "bounded_bytes",
            )
        )
        verified = "yes" if e["verified"] else "no"
        if not e["supported"]:
            verified += f"; not counted: {e['reason']}"
        table.add_row(
            e["name"],
            str(e["num_layers"] or "?"),
            ", ".join(e["kinds"]),
            below,
            marginal,
            bounded,
            verified,
        )
    _console().print(table)


def print_layout(entry: Mapping[str, Any]) -> None:
    """Print what one layout caches."""
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for key, value in entry.items():
        if isinstance(value, dict):
            for inner, number in value.items():
                table.add_row(f"{key}: {inner}", f"{number:,}")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            table.add_row(key, f"{value:,}")
        else:
            shown = "; ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
            table.add_row(key, shown or "-")
    _console().print(table)


def print_bench(results: Sequence[Mapping[str, Any]]) -> None:
    """Print the ratios of a benchmark against their targets."""
    table = Table(header_style="bold")
    for heading in ("name", "baseline", "ratio", "min", "max", "target", "met"):
        table.add_column(heading)
    for r in results:
        met = {True: "yes", False: "no", None: "not measured"}[r["met"]]
        ratios = [r[k] for k in ("ratio", "ratio_min", "ratio_max")]
        numbers = ["-" if ratio is None else f"{ratio:.4g}" for ratio in ratios]
        table.add_row(r["name"], r["baseline"], *numbers, r["target"], met)
        if r.get("detail"):
            table.add_row("", r["detail"], "", "", "", "", "")
    _console().print(table)

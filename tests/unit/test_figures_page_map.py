"""The page map: what a row's file says, and files that say nothing of use."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest
from test_figures import PAIRS, make_rows, read_csv

from kvsim.errors import FigureError
from kvsim.figures import FIGURES, draw, draw_all, style

NAME = "page_map"
TAIL, DEAD, LIVE, FREE = range(4)
KINDS = [("none", "slot"), ("forward", "slot"), ("hole_fill", "row")]


def states(kind, pages=12, seed=5):
    """Maps of one run: a random half dies, two pages empty, and compaction packs what is left."""
    rng = np.random.default_rng(seed)
    before = np.full((pages, 16), LIVE, np.uint8)
    before[-1, 9:] = TAIL
    evicted = np.where((before == LIVE) & (rng.random(before.shape) < 0.5), DEAD, before)
    evicted[[2, 7]] = FREE
    if kind == "none":
        return {"before": before, "evicted": evicted, "after": evicted}
    live = int((evicted == LIVE).sum())
    # The pool has grown meanwhile, as it does under rebuild.
    after = np.full((2 * pages, 16), FREE, np.uint8)
    used = -(-live // 16)
    after[:used] = TAIL
    after.reshape(-1)[:live] = LIVE
    return {"before": before, "evicted": evicted, "after": after}


def recorded(folder, kinds=KINDS, maps=states, **shape):
    """Rows that name maps, and the maps, written."""
    shape = {"policies": ("snapkv",), "pairs": PAIRS[:1], "budgets": (0.25,), **shape}
    (folder / "maps").mkdir(exist_ok=True)
    rows = []
    for base in make_rows(granularities=("token",), **shape):
        for algorithm, unit in kinds:
            name = f"maps/{len(rows)}.npz"
            np.savez_compressed(folder / name, **maps(algorithm))
            changed = {"compaction": algorithm, "compaction_unit": unit, "page_map": name}
            rows.append({**base, **changed, "run_id": f"{len(rows):012x}"})
    return rows


def drawn(rows, folder):
    with style.context():
        return FIGURES[NAME].draw(FIGURES[NAME].select(rows, folder))


def titles(rows, folder):
    return [axes.get_title(loc="left") for axes in drawn(rows, folder).axes]


def test_csv_equals_the_selected_rows(tmp_path):
    rows = recorded(tmp_path)
    paths = draw(NAME, rows, tmp_path / "out", tmp_path)
    data = FIGURES[NAME].select(rows, tmp_path)
    written = read_csv(paths[2])
    assert list(written[0]) == list(FIGURES[NAME].COLUMNS) == list(data[0])
    assert written == [{k: "" if v is None else str(v) for k, v in row.items()} for row in data]


def test_every_slot_of_the_csv_is_the_files_and_the_pictures(tmp_path):
    rows = recorded(tmp_path)
    data = FIGURES[NAME].select(rows, tmp_path)
    pages = max(row["page"] for row in data) + 1
    assert pages == 12
    for row in rows:
        for stage, wanted in states(row["compaction"]).items():
            lines = [d for d in data if (d["run_id"], d["stage"]) == (row["run_id"], stage)]
            assert [line["page"] for line in lines] == list(range(pages))
            held = (wanted != FREE).any(axis=1).sum()
            for line, slots in zip(lines, wanted, strict=False):
                assert line["slots"] == "".join("TDLF"[state] for state in slots)
                counts = [line[f"{kind}_slots"] for kind in ("tail", "dead", "live")]
                assert counts == [(slots == state).sum() for state in (TAIL, DEAD, LIVE)]
                assert line["state"] == ("free" if FREE in slots else "held")
                assert line["stage_held_pages"] == held
    shown = [axes.images[0].get_array() for axes in drawn(rows, tmp_path).axes]
    # Two strips that the runs share, and one for each of the two that compact.
    assert len(shown) == 4
    wanted = states("forward")
    for image, stage in zip(shown, ("before", "evicted", "after"), strict=False):
        colors = {state: image[state == wanted[stage][:pages].T] for state in range(4)}
        assert all((color == color[0]).all() for color in colors.values() if len(color))


def test_runs_that_agree_before_and_after_eviction_share_those_strips(tmp_path):
    held = {kind: (states(kind)["after"] != FREE).any(axis=1).sum() for kind in ("none", "forward")}
    assert titles(recorded(tmp_path), tmp_path) == [
        "before eviction: 12 pages held",
        f"after eviction, without compaction: {held['none']} pages held",
        f"after compaction forward by slot: {held['forward']} pages held",
        f"after compaction hole_fill by row: {held['forward']} pages held",
    ]
    turn = iter(range(99))
    rows = recorded(
        tmp_path,
        KINDS[1:],
        maps=lambda kind: states(kind, seed=next(turn) // 2),
        policies=("h2o", "snapkv"),
    )
    found = titles(rows, tmp_path)
    assert len(found) == 8
    assert sum("policy h2o" in title for title in found) == 4


def test_at_most_six_runs_are_drawn_and_the_caption_says_of_how_many(tmp_path):
    rows = recorded(tmp_path, policies=("h2o", "snapkv", "tova"))
    data = FIGURES[NAME].select(rows, tmp_path)
    assert len({row["run_id"] for row in data}) == 6
    assert {row["policy"] for row in data} == {"h2o", "snapkv"}
    text = " ".join(drawn(rows, tmp_path).get_supxlabel().split())
    assert "the first 6 of 9 runs with a map" in text


def test_a_large_pool_is_cut_and_the_caption_says_so(tmp_path):
    rows = recorded(tmp_path, KINDS[:1], maps=lambda kind: states(kind, pages=700))
    data = FIGURES[NAME].select(rows, tmp_path)
    assert max(row["page"] for row in data) == 511
    assert {r["stage_held_pages"] for r in data if r["stage"] == "before"} == {700}
    text = " ".join(drawn(rows, tmp_path).get_supxlabel().split())
    assert "the first 512 of 700 pages" in text


def test_missing_rows_are_named_and_nothing_is_written(tmp_path):
    out = tmp_path / "out"
    for rows in ([], make_rows(), [{**row, "page_map": None} for row in make_rows()]):
        with pytest.raises(FigureError, match=f"none of the {len(rows)} rows does"):
            draw(NAME, rows, out, tmp_path)
    with pytest.raises(FigureError, match="page_map needs the results folder"):
        draw(NAME, recorded(tmp_path), out)
    with pytest.raises(FigureError, match="page_map needs the results folder"):
        draw_all(recorded(tmp_path), out, [NAME])
    assert not out.exists()
    assert len(draw_all(recorded(tmp_path), out, [NAME], tmp_path)) == 3


def bytes_of(**arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def plain(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def no_array():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for stage in ("before", "evicted", "after"):
            archive.writestr(f"{stage}.npy", b"nothing")
    return file.getvalue()


GOOD = states("none")
PARTLY = np.where(np.arange(16) < 3, FREE, GOOD["before"]).astype(np.uint8)
MALFORMED = {
    "empty": b"",
    "text": b"no archive at all",
    "cut": bytes_of(**GOOD)[:-40],
    "spoilt": bytes_of(**GOOD)[:70] + bytes(30) + bytes_of(**GOOD)[100:],
    "one array": plain(GOOD["before"]),
    "objects": plain(np.array([{}], dtype=object)),
    "object arrays": bytes_of(**{**GOOD, "after": np.array([{}], dtype=object)}),
    "no array": no_array(),
    "no stage": bytes_of(before=GOOD["before"], after=GOOD["after"]),
    "other type": bytes_of(**{**GOOD, "after": GOOD["after"].astype(np.int64)}),
    "other page": bytes_of(**{**GOOD, "after": GOOD["after"][:, :8]}),
    "flat": bytes_of(**{**GOOD, "evicted": GOOD["evicted"].reshape(-1)}),
    "other state": bytes_of(**{**GOOD, "evicted": GOOD["evicted"] + np.uint8(2)}),
    "held in part": bytes_of(**{**GOOD, "before": PARTLY}),
}


@pytest.mark.parametrize("content", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_file_is_one_clear_line_that_names_it(content, tmp_path):
    rows = recorded(tmp_path)
    (tmp_path / "maps" / "1.npz").write_bytes(content)
    with pytest.raises(FigureError, match=r"maps.1\.npz") as error:
        draw(NAME, rows, tmp_path / "out", tmp_path)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_missing_file_is_named(tmp_path):
    rows = recorded(tmp_path)
    (tmp_path / "maps" / "2.npz").unlink()
    with pytest.raises(FigureError, match=r"2\.npz cannot be read: No such file"):
        FIGURES[NAME].select(rows, tmp_path)


@pytest.mark.parametrize("name", ["../secret.npz", "/etc/passwd", "maps/../../x.npz", "a\0b"])
def test_a_file_outside_the_results_folder_is_refused(name, tmp_path):
    rows = [{**row, "page_map": name} for row in recorded(tmp_path, KINDS[:1])]
    with pytest.raises(FigureError, match="does not lie in the results folder"):
        FIGURES[NAME].select(rows, tmp_path)


def test_a_pool_without_pages_is_refused_or_drawn_but_never_breaks(tmp_path):
    rows = recorded(
        tmp_path, KINDS[:1], maps=lambda _: dict.fromkeys(GOOD, np.zeros((0, 16), np.uint8))
    )
    with pytest.raises(FigureError, match="no page"):
        draw(NAME, rows, tmp_path / "out", tmp_path)


def test_the_same_rows_give_the_same_bytes(tmp_path):
    rows = recorded(tmp_path)
    first = [path.read_bytes() for path in draw(NAME, rows, tmp_path / "out", tmp_path)]
    second = [path.read_bytes() for path in draw(NAME, rows[::-1], tmp_path / "out", tmp_path)]
    assert first == second

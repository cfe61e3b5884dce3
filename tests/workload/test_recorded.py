"""Recordings: what is read, what is refused in one clear line, and the one that kvsim ships."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from recordings import NAMES, arrays, row_of, write_layout, write_recording

from kvsim.errors import KvsimError, WorkloadError
from kvsim.layout import load_layout
from kvsim.policies import Attention
from kvsim.workload.recorded import RecordedSignals, load, locate
from kvsim.workload.reduce import reduced

SHIPPED = "package:smollm2-135m-4096-reduced"
LAYERS, HEADS, TOKENS = 2, 3, 40


@pytest.fixture
def made():
    return arrays(LAYERS, HEADS, TOKENS)


def refusal(folder: Path, made: dict[str, np.ndarray]) -> str:
    """Return the one line with which a recording is refused; it names the file."""
    with pytest.raises(WorkloadError) as caught:
        load(write_recording(folder, made))
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("recording.npz: ")
    return text


def test_a_recording_is_read_as_it_was_written(tmp_path, made):
    got = load(write_recording(tmp_path, made))
    assert got.unit_shape == (LAYERS, HEADS)
    assert got.tokens == TOKENS
    assert got.layers is None
    for name in NAMES:
        array = getattr(got, name)
        assert array.dtype == np.float32
        assert array.tobytes() == made[name].tobytes()
        # Served from memory to many runs: none may write into what the next one reads.
        assert not array.flags.writeable


def test_an_edited_file_is_read_again(tmp_path, made):
    path = write_recording(tmp_path, made)
    load(path)
    write_recording(tmp_path, arrays(LAYERS, HEADS, TOKENS + 1))
    assert load(path).tokens == TOKENS + 1


def test_scaled_arrays_are_divided_and_the_others_are_not(tmp_path, made):
    stored = dict(made)
    for name in ("last", "snap"):
        stored[name] = made[name] * np.float32(2**5)
    got = load(write_recording(tmp_path, {**stored, "scale_bits": np.int32(5)}))
    for name in NAMES:
        # A power of two costs no bit.
        assert getattr(got, name).tobytes() == made[name].tobytes()


@pytest.mark.parametrize(
    "bits",
    [
        np.array([5]),
        np.array([1, 2]),
        np.array(5.0),
        np.array(np.nan),
        np.array("5"),
        np.array(-1),
        np.array(65),
        np.array(10**6),
        np.array(True),
    ],
    ids=str,
)
def test_scale_bits_is_one_small_integer(tmp_path, made, bits):
    # 2**200 is no float32 and 2**-200 is its zero: dividing by either makes nonsense in silence.
    text = refusal(tmp_path, {**made, "scale_bits": bits})
    assert "'scale_bits' must be one integer from 0 to 64" in text


@pytest.mark.parametrize("name", NAMES)
class TestEachArray:
    def test_a_missing_one_is_named(self, tmp_path, made, name):
        del made[name]
        assert f"no array '{name}'" in refusal(tmp_path, made)

    @pytest.mark.parametrize(
        "shape", [(), (TOKENS,), (HEADS, TOKENS), (1, LAYERS, HEADS, TOKENS), (0, 3, 40), (2, 3, 0)]
    )
    def test_a_wrong_number_of_axes_is_refused(self, tmp_path, made, name, shape):
        made[name] = np.zeros(shape, np.float32)
        text = refusal(tmp_path, made)
        assert f"'{name}' must be [layers, kv_heads, tokens], not {shape}" in text

    def test_unequal_shapes_are_refused(self, tmp_path, made, name):
        made[name] = made[name][:, :, 1:]
        text = refusal(tmp_path, made)
        assert "unequal shapes" in text
        assert f"{name} ({LAYERS}, {HEADS}, {TOKENS - 1})" in text

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_a_number_that_is_not_finite_is_refused(self, tmp_path, made, name, value):
        made[name][1, 2, 30] = value
        assert f"'{name}' holds a number that is not finite" in refusal(tmp_path, made)

    def test_a_double_too_large_for_float32_is_refused(self, tmp_path, made, name):
        # Finite as it stands in the file, and infinite once it is read as float32.
        made[name] = made[name].astype(np.float64)
        made[name][0, 0, 0] = 1e300
        assert f"'{name}' holds a number that is not finite" in refusal(tmp_path, made)

    @pytest.mark.parametrize("dtype", [np.int32, np.complex64, np.bool_, "S4", [("a", "f4")]])
    def test_what_is_no_float_is_refused(self, tmp_path, made, name, dtype):
        made[name] = np.zeros(made[name].shape, dtype)
        assert f"'{name}' must hold floats" in refusal(tmp_path, made)

    def test_pickled_content_is_refused_and_never_run(self, tmp_path, made, name):
        made[name] = np.array([Bomb(tmp_path)], dtype=object)
        assert f"'{name}' holds pickled objects" in refusal(tmp_path, made)
        assert not (tmp_path / "ran").exists()


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return Path.touch, (self.folder / "ran",)


def test_the_bomb_would_go_off(tmp_path, made):
    # Else the test above could not fail.
    path = write_recording(tmp_path, {**made, "cum": np.array([Bomb(tmp_path)], dtype=object)})
    with np.load(path, allow_pickle=True) as archive:
        assert archive["cum"].size == 1
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        ([0.0, 1.0], "must list layer numbers"),
        ([[0, 1]], "must list layer numbers"),
        (np.zeros(0, np.int32), "must list layer numbers"),
        ([-1, 0], "must ascend from 0 or more"),
        ([1, 0], "must ascend from 0 or more"),
        ([1, 1], "must ascend from 0 or more"),
    ],
)
def test_listed_layers_must_ascend(tmp_path, made, listed, words):
    assert words in refusal(tmp_path, {**made, "layers": np.array(listed)})


def write_bytes(folder: Path, data: bytes) -> str:
    path = folder / "recording.npz"
    path.write_bytes(data)
    return str(path)


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.99])
def test_a_truncated_archive_is_refused(tmp_path, made, share):
    whole = Path(write_recording(tmp_path, made)).read_bytes()
    with pytest.raises(WorkloadError, match=r"^recording\.npz: not an \.npz archive"):
        load(write_bytes(tmp_path, whole[: int(share * len(whole))]))


def test_a_damaged_archive_is_refused_wherever_the_damage_is(tmp_path, made):
    # A member may break in its header, in its compressed stream or in its checksum, and each
    # raises another exception; a read that succeeds must have read what was written.
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **made)
    whole = buffer.getvalue()
    refused = 0
    for start in range(0, len(whole) - 24, 12):
        damaged = bytearray(whole)
        for at in range(start, start + 24):
            damaged[at] ^= 0x5A
        try:
            got = load(write_bytes(tmp_path, bytes(damaged)))
        except KvsimError:
            refused += 1
            continue
        for name in NAMES:
            assert getattr(got, name).tobytes() == made[name].tobytes()
    assert refused > 100


def member(folder: Path, name: str, data: bytes) -> str:
    """Write an archive whose four members hold the same bytes."""
    path = folder / "recording.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for array in NAMES:
            archive.writestr(name.format(array), data)
    return str(path)


def npy(header: bytes) -> bytes:
    padded = header.ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("{}", b"hello", "'cum' is not stored as an .npy array"),
        ("{}.npy", b"hello", "'cum' is not stored as an .npy array"),
        ("{}.npy", npy(b"{'descr': '<f4', 'shape': (((((("), "'cum' cannot be read"),
        (
            "{}.npy",
            npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999, 99999999, 9), }"),
            "'cum' cannot be read",
        ),
    ],
)
def test_members_that_are_no_arrays_are_refused(tmp_path, name, data, words):
    with pytest.raises(WorkloadError, match=words):
        load(member(tmp_path, name, data))


def test_one_array_is_no_recording(tmp_path):
    np.save(tmp_path / "one.npy", np.zeros((2, 3, 40), np.float32))
    with pytest.raises(WorkloadError, match=r"one\.npy: one array is not a recording"):
        load(str(tmp_path / "one.npy"))


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(WorkloadError, match=r"workload\.path: there is no file .*none\.npz"):
        load(str(tmp_path / "none.npz"))
    with pytest.raises(WorkloadError, match="there is no file"):
        load(str(tmp_path))
    with pytest.raises(WorkloadError, match="kvsim ships no recording 'none'"):
        load("package:none")
    with pytest.raises(WorkloadError, match="kvsim ships no recording"):
        load("package:../recorded")


@pytest.mark.parametrize(
    ("layers", "heads", "kind", "words"),
    [
        (3, 3, "full", "recorded 2 layers x 3 KV heads, but tiny-3x3 has 3 layers x 3"),
        (2, 2, "full", "recorded 2 layers x 3 KV heads, but tiny-2x2 has 2 layers x 2"),
        (3, 2, "full", "recorded 2 layers x 3 KV heads, but tiny-3x2 has 3 layers x 2"),
        (2, 3, "sliding", "layers of kind sliding"),
    ],
)
def test_a_recording_of_another_geometry_is_refused_not_cut(
    tmp_path, made, layers, heads, kind, words
):
    layout = load_layout(write_layout(tmp_path, layers, heads, kind))
    with pytest.raises(WorkloadError, match=words):
        load(write_recording(tmp_path, made)).fit(layout, "recording.npz")


def test_only_listed_layers_of_the_layout_are_counted(tmp_path, made):
    layout = load_layout(write_layout(tmp_path, 5, HEADS))
    whole = {**made, "layers": np.array([1, 4])}
    got = load(write_recording(tmp_path, whole)).fit(layout, "recording.npz")
    assert [layer.index for layer in got.layers()] == [1, 4]
    # And a list that says other layers than the arrays or the layout have is refused.
    for listed, words in (([0, 1, 4], "lists 3 layers and holds 2"), ([1, 5], "holds layer 5")):
        path = write_recording(tmp_path, {**made, "layers": np.array(listed)})
        with pytest.raises(WorkloadError, match=words):
            load(path).fit(layout, "recording.npz")


def test_signals_are_those_of_the_tokens_asked_for(tmp_path, made):
    signals = RecordedSignals(load(write_recording(tmp_path, made)), Attention)
    for columns in (np.arange(TOKENS), np.array([0, 7, 39])):
        seen = signals.observe(columns)
        assert set(seen) == set(RecordedSignals.provides)
        attention = seen["attention"]
        assert (attention.cumulative == made["cum"][..., columns]).all()
        assert (attention.last == made["last"][..., columns]).all()
        assert (attention.window == made["snap"][..., columns]).all()
        assert (seen["key_norms"] == made["knorm"][..., columns]).all()
    assert (signals.next_query(9) == made["last"][..., :9]).all()


class TestTheShippedRecording:
    def test_is_small(self):
        assert locate(SHIPPED).stat().st_size < 2**20

    def test_is_every_third_layer_of_its_model(self):
        got = load(SHIPPED)
        assert got.layers == tuple(range(0, 30, 3))
        assert got.unit_shape == (10, 3)
        assert got.tokens == 4096
        assert got.fit(load_layout("SmolLM2-135M"), SHIPPED).units == 30

    def test_holds_what_the_reduction_makes_of_the_full_one(self, shared):
        wanted = reduced(str(shared / "signals" / "smollm2-135m-4096.npz"))
        with np.load(locate(SHIPPED), allow_pickle=False) as archive:
            assert set(archive.files) == set(wanted)
            for name, array in wanted.items():
                assert archive[name].dtype == array.dtype, name
                assert archive[name].tobytes() == array.tobytes(), name
            assert int(archive["scale_bits"]) == 15

    def test_is_near_the_full_one(self, shared):
        full, small = load(str(shared / "signals" / "smollm2-135m-4096.npz")), load(SHIPPED)
        for name, bits in (("cum", 0), ("last", 15), ("snap", 15), ("knorm", 0)):
            wanted = getattr(full, name)[::3].astype(np.float64)
            error = np.abs(getattr(small, name).astype(np.float64) - wanted)
            # Half a unit in the last of float16's 11 bits; below its normals half of 2**-24.
            most = np.maximum(wanted * 2.0**-11, 2.0 ** (-25 - bits))
            assert (error <= most).all(), name
            assert error.any(), name

    def test_a_row_says_how_many_layers_were_counted(self):
        row = row_of({}, policy__name="streaming_llm")
        assert row["layers_counted"] == "10/30"
        assert row["tokens"] == 4096


def test_a_checksum_stands_behind_every_array(tmp_path, made):
    # One flipped bit of a stored float is no damage that any decoder would stumble over.
    path = Path(write_recording(tmp_path, made))
    data = bytearray(path.read_bytes())
    at = data.find(made["cum"].tobytes())
    data[at + 100] ^= 1
    with pytest.raises(WorkloadError, match="'cum' cannot be read"):
        load(write_bytes(tmp_path, bytes(data)))

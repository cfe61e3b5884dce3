"""Recorded attention of a real model: read, validated, and never trusted to run code.

The format is an .npz of four arrays [layers, kv_heads, tokens]: `cum`, `last`, `snap` and
`knorm` (see docs/recordings.md). A reduced recording also lists its `layers`, and stores `last`
and `snap` times 2**scale_bits, because most of them would be subnormal in float16.
"""

from __future__ import annotations

import functools
import zipfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.errors import WorkloadError
from kvsim.layout import KVLayout

PACKAGE = "package:"
ARRAYS = ("cum", "last", "snap", "knorm")
SCALED = ("last", "snap")
MOST_SCALE_BITS = 64


@dataclass(frozen=True)
class Recording:
    """One prefill of one sequence.

    Attributes
    ----------
    cum, last, snap, knorm : float32 [layers, kv_heads, tokens]
        Cumulative attention received, attention from the last query, mean attention from the
        last 32 queries, and the L2 norm of the post-RoPE key.
    layers : tuple of int or None
        The model's layers that were recorded; None means all.
    """

    cum: np.ndarray
    last: np.ndarray
    snap: np.ndarray
    knorm: np.ndarray
    layers: tuple[int, ...] | None

    @property
    def tokens(self) -> int:
        """Tokens of the prefill."""
        return int(self.cum.shape[2])

    @property
    def unit_shape(self) -> tuple[int, int]:
        """(layers, kv_heads)."""
        return int(self.cum.shape[0]), int(self.cum.shape[1])

    def fit(self, layout: KVLayout, name: str) -> KVLayout:
        """Return the part of a layout that this recording covers.

        Raises
        ------
        WorkloadError
            If layers or KV heads do not match: another geometry is refused, not cut to fit.
        """
        if self.layers is not None:
            if len(self.layers) != self.unit_shape[0]:
                raise WorkloadError(
                    f"{name}: it lists {len(self.layers)} layers and holds {self.unit_shape[0]}"
                )
            if max(self.layers) >= layout.num_layers:
                raise WorkloadError(
                    f"{name}: it holds layer {max(self.layers)} and {layout.name} has "
                    f"{layout.num_layers} layers"
                )
            layout = layout.subset(self.layers)
        layers = layout.layers()
        kinds = sorted({layer.kind for layer in layers} - {"full"})
        if kinds:
            raise WorkloadError(
                f"{name}: {layout.name} has layers of kind {kinds[0]}; recorded runs are "
                "simulated for full attention only"
            )
        heads = {layer.kv_heads for layer in layers}
        have = f"{self.unit_shape[0]} layers x {self.unit_shape[1]} KV heads"
        if len(layers) != self.unit_shape[0] or heads != {self.unit_shape[1]}:
            raise WorkloadError(
                f"{name}: recorded {have}, but {layout.name} has {len(layers)} layers x "
                f"{'/'.join(map(str, sorted(heads)))} KV heads"
            )
        return layout


def locate(path: str) -> Path:
    """Return the file behind a path, or behind ``package:NAME``, a recording inside kvsim.

    Raises
    ------
    WorkloadError
        If there is no such file.
    """
    if path.startswith(PACKAGE):
        name = path.removeprefix(PACKAGE)
        file = Path(str(resources.files("kvsim.workload") / "data" / f"{name}.npz"))
        if not name or "/" in name or not file.is_file():
            raise WorkloadError(f"workload.path: kvsim ships no recording {name!r}")
        return file
    file = Path(path)
    if not file.is_file():
        raise WorkloadError(f"workload.path: there is no file {path}")
    return file


def _array(archive: np.lib.npyio.NpzFile, name: str, path: str) -> np.ndarray:
    if name not in archive.files:
        raise WorkloadError(f"{path}: it has no array {name!r}")
    try:
        array = archive[name]
    except Exception as error:
        # A damaged member raises whatever zipfile, zlib or NumPy happened to be doing.
        pickled = "allow_pickle" in str(error)
        what = "holds pickled objects, which kvsim never loads" if pickled else "cannot be read"
        raise WorkloadError(f"{path}: array {name!r} {what}") from None
    if not isinstance(array, np.ndarray):
        raise WorkloadError(f"{path}: {name!r} is not stored as an .npy array")
    return array


def _scale_bits(archive: np.lib.npyio.NpzFile, path: str) -> int:
    array = _array(archive, "scale_bits", path)
    if array.ndim or array.dtype.kind not in "iu" or not 0 <= int(array) <= MOST_SCALE_BITS:
        raise WorkloadError(
            f"{path}: array 'scale_bits' must be one integer from 0 to {MOST_SCALE_BITS}"
        )
    return int(array)


def _signal(archive: np.lib.npyio.NpzFile, name: str, path: str, scale_bits: int) -> np.ndarray:
    array = _array(archive, name, path)
    if array.dtype.kind != "f":
        raise WorkloadError(f"{path}: array {name!r} must hold floats, not {array.dtype}")
    if array.ndim != 3 or 0 in array.shape:
        raise WorkloadError(
            f"{path}: array {name!r} must be [layers, kv_heads, tokens], not {array.shape}"
        )
    with np.errstate(over="ignore"):
        # Before the check: a double may be finite and still too large for float32.
        array = array.astype(np.float32)
    if not np.isfinite(array).all():
        raise WorkloadError(f"{path}: array {name!r} holds a number that is not finite in float32")
    if name in SCALED and scale_bits:
        array = array / np.float32(2.0**scale_bits)
    array.setflags(write=False)
    return array


@functools.lru_cache(maxsize=4)
def _load(path: str, stamp: tuple[int, int], shown: str) -> Recording:
    try:
        archive = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        raise WorkloadError(f"{shown}: not an .npz archive without pickled content") from None
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise WorkloadError(f"{shown}: one array is not a recording; an .npz archive is needed")
    with archive:
        bits, layers = 0, None
        if "scale_bits" in archive.files:
            bits = _scale_bits(archive, shown)
        if "layers" in archive.files:
            listed = _array(archive, "layers", shown)
            if listed.ndim != 1 or listed.dtype.kind not in "iu" or listed.size == 0:
                raise WorkloadError(f"{shown}: array 'layers' must list layer numbers")
            layers = tuple(int(layer) for layer in listed)
            if list(layers) != sorted(set(layers)) or layers[0] < 0:
                raise WorkloadError(f"{shown}: array 'layers' must ascend from 0 or more")
        found = {name: _signal(archive, name, shown, bits) for name in ARRAYS}
    shapes = {array.shape for array in found.values()}
    if len(shapes) != 1:
        text = ", ".join(f"{name} {array.shape}" for name, array in found.items())
        raise WorkloadError(f"{shown}: arrays of unequal shapes: {text}")
    return Recording(layers=layers, **found)


def load(path: str) -> Recording:
    """Read and validate a recording; repeated reads of an unchanged file are served from memory.

    Raises
    ------
    WorkloadError
        Naming the file and the array at fault.
    """
    file = locate(path)
    stat = file.stat()
    shown = path if path.startswith(PACKAGE) else file.name
    return _load(str(file), (stat.st_mtime_ns, stat.st_size), shown)


class RecordedSignals:
    """A recording as the eviction loop asks for it.

    Parameters
    ----------
    recording : Recording
    attention : type
        Builds the view's attention from (cumulative, last, window); handed in, because a
        workload knows nothing about policies.
    """

    provides = ("attention", "key_norms")

    def __init__(self, recording: Recording, attention: Any) -> None:
        self._recording = recording
        self._attention = attention

    def extend(self, tokens: int) -> None:
        """Nothing to follow: a recording tells of the whole prefill at once."""

    def fork(self, sequence: int) -> RecordedSignals:
        """Return itself: a fork has the same prefill behind it."""
        return self

    def observe(self, columns: np.ndarray) -> dict[str, Any]:
        """Return the signals of these tokens: attention and key norms."""
        r = self._recording
        if columns.size == r.tokens:
            # The whole prompt, as at the first eviction: no copy is needed.
            return {
                "attention": self._attention(r.cum, r.last, r.snap),
                "key_norms": r.knorm,
            }
        return {
            "attention": self._attention(
                r.cum[..., columns], r.last[..., columns], r.snap[..., columns]
            ),
            "key_norms": r.knorm[..., columns],
        }

    def next_query(self, appended: int) -> np.ndarray:
        """Return the attention of the last query, [layers, kv_heads, appended]."""
        return self._recording.last[..., :appended]

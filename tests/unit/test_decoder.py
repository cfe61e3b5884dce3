"""The tiny decoder and its attention: what equal rows make equal, and what must differ.

Each docstring names the bug that its test would catch. Logits are compared as integers.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from kvsim.errors import LayoutError, LedgerError, RotationError
from kvsim.seeds import stream
from kvsim.tensors.attention import attend
from kvsim.tensors.contiguous import ContiguousCache
from kvsim.tensors.decoder import CONFIGS, DecoderConfig, TinyDecoder
from kvsim.tensors.rope import Rope

EXACT = ("kv_raw", "raw_only")


def decoder_of(name, seed=1):
    config = CONFIGS[name] if isinstance(name, str) else name
    return TinyDecoder(config, stream(seed, "test"))


def words(count, seed=2):
    return stream(seed, "test").integers(0, 64, count).tolist()


def decode(decoder, cache, tokens):
    """Return the logits after each token, as integers [tokens, vocabulary]."""
    logits = [decoder.step(cache, token) for token in tokens]
    return np.array(logits, np.float32).reshape(len(tokens), -1).view(np.uint32)


def started(name, planes="kv_raw", positions="renumber"):
    decoder = decoder_of(name)
    return decoder, ContiguousCache(decoder.shape(planes, 64), positions)


def snapshot(cache):
    """Return every array of a cache as integers."""
    return {name: array.view(np.uint8).copy() for name, array in cache.rows().items()}


def equal(ours, theirs):
    return ours.keys() == theirs.keys() and all(np.array_equal(ours[k], theirs[k]) for k in ours)


class Recorded:
    """A cache that remembers what was appended to it."""

    def __init__(self, cache):
        self._cache = cache
        self.appended = []

    def __getattr__(self, name):
        return getattr(self._cache, name)

    def append(self, rows: list[Mapping[str, np.ndarray]]) -> None:
        self.appended.append(rows)
        self._cache.append(rows)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_decoder_repeats_itself_whatever_the_planes(name):
    """State left between steps, weights from a global generator, keys rotated twice."""
    runs = []
    for planes in ("kv", *EXACT):
        decoder, cache = started(name, planes)
        runs.append(decode(decoder, cache, words(24)))
        assert cache.pos.tolist() == list(range(24))
    assert np.isfinite(runs[0].view(np.float32)).all()
    assert np.array_equal(runs[0], runs[1])
    assert np.array_equal(runs[0], runs[2])
    other = decoder_of(name, seed=9)
    again = decode(other, ContiguousCache(other.shape("kv", 64)), words(24))
    assert (again != runs[0]).mean() > 0.9


@pytest.mark.parametrize("name", CONFIGS)
def test_next_logits_leave_the_cache_as_it_was(name):
    """A look ahead that appends, or that is not what the step then gives."""
    decoder, cache = started(name)
    decode(decoder, cache, words(9))
    before = snapshot(cache)
    ahead = decoder.next_logits(cache, 7)
    assert equal(snapshot(cache), before)
    assert np.array_equal(ahead.view(np.uint32), decoder.step(cache, 7).view(np.uint32))
    assert cache.length == 10


@pytest.mark.parametrize("name", CONFIGS)
def test_one_append_per_step(name):
    """Layers that append one by one, so that a refusal leaves half a token."""
    decoder, cache = started(name)
    recorded = Recorded(cache)
    decode(decoder, recorded, words(3))
    assert len(recorded.appended) == 3


@pytest.mark.parametrize("planes", ["kv", *EXACT])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_token_reads_its_own_row_as_the_cache_will_hold_it(name, planes, monkeypatch):
    """An own key that is not rotated, or rotated at another position than the cache gives it."""
    seen = []

    def watching(q, k, v, *arguments, **options):
        seen.append((k, v))
        return attend(q, k, v, *arguments, **options)

    decoder, cache = started(name, planes, "keep")
    decode(decoder, cache, words(9))
    cache.evict_span(3, 2)
    monkeypatch.setattr("kvsim.tensors.decoder.attend", watching)
    decoder.step(cache, 1)
    rows = cache.rows()
    assert cache.pos.tolist() == [0, 1, 2, 5, 6, 7, 8, 9]
    for which, plane in enumerate("KV"):
        if plane in rows:
            read = np.hstack([layer[which].reshape(8, -1) for layer in seen])
            assert np.array_equal(read.view(np.uint32), rows[plane].view(np.uint32))


@pytest.mark.parametrize("name", CONFIGS)
def test_every_row_and_its_order_counts(name):
    """Attention that reads no rows, or none of some layer: the comparison could not fail."""
    decoder, cache = started(name)
    decode(decoder, cache, words(5))
    first = decoder.next_logits(cache, 3).view(np.uint32)
    rows = cache.rows()
    for plane in ("K", "V"):
        if plane not in rows:
            continue
        width = rows[plane].shape[1] // 2
        for layer in range(2):
            changed = dict(rows)
            changed[plane] = rows[plane].copy()
            changed[plane][2, layer * width] += np.float32(0.5)
            view = type("View", (), {"next_position": 5, "rows": lambda _, f=0, c=changed: c})()
            assert (decoder.next_logits(view, 3).view(np.uint32) != first).any()
    turned = {name: array[::-1].copy() for name, array in rows.items()}
    view = type("View", (), {"next_position": 5, "rows": lambda _, f=0: turned})()
    assert (decoder.next_logits(view, 3).view(np.uint32) != first).any()


@pytest.mark.parametrize("positions", ["renumber", "keep"])
@pytest.mark.parametrize("planes", EXACT)
@pytest.mark.parametrize("name", CONFIGS)
def test_quarantine_of_a_tail(name, planes, positions):
    """A span that was evicted before anything attended to it, and is still felt."""
    prompt, span, rest = words(8), words(5, seed=3), words(10, seed=4)
    decoder, never = started(name, planes, positions)
    decode(decoder, never, prompt)
    cache = never.fork()
    decode(decoder, cache, span)
    assert cache.evict_span(8, 5) == 5
    assert np.array_equal(decode(decoder, cache, rest), decode(decoder, never, rest))
    assert equal(snapshot(cache), snapshot(never))


@pytest.mark.parametrize("planes", EXACT)
@pytest.mark.parametrize("name", CONFIGS)
def test_quarantine_of_a_middle_span(name, planes):
    """A survivor that is not rotated to its new position, bit for bit.

    The rows behind the span were made without it, as when a mask hides it from them, and stand
    at higher positions until it is evicted. The control has them attend to it: V and the rows of
    later layers have taken it in, and evicting it must not equal never having seen it.
    """
    prompt, span, rest = words(6), words(5, seed=3), words(7, seed=4)
    decoder, never = started(name, planes)
    decode(decoder, never, prompt)
    cache, late = never.fork(), never.fork()
    recorded = Recorded(never)
    decode(decoder, recorded, rest)
    decode(decoder, cache, span)
    for rows in recorded.appended:
        cache.append(rows)
    assert not equal(snapshot(cache), snapshot(never))
    assert cache.evict_span(6, 5) == 5
    assert equal(snapshot(cache), snapshot(never))

    decode(decoder, late, span + rest)
    assert late.evict_span(6, 5) == 5
    assert late.pos.tolist() == never.pos.tolist()
    assert not equal(snapshot(late), snapshot(never))

    more = words(6, seed=5)
    expected = decode(decoder, never, more)
    assert np.array_equal(decode(decoder, cache, more), expected)
    assert (decode(decoder, late, more) != expected).mean() > 0.5


def test_kept_positions_are_felt():
    """Distances taken from ranks where positions are kept."""
    for name in ("dense", "alibi", "hybrid"):
        logits = []
        for positions in ("keep", "renumber"):
            decoder, cache = started(name, "kv_raw", positions)
            decode(decoder, cache, words(12))
            cache.evict_span(4, 3)
            logits.append(decoder.next_logits(cache, 1).view(np.uint32))
        assert (logits[0] != logits[1]).any()


def test_a_window_ends_where_it_says():
    """A window off by one: until it is full it changes nothing, from then on every size does."""
    windows = (5, 6, 7, None)
    runs = {}
    for window in windows:
        config = DecoderConfig((Rope(8, 1e4), Rope(8, 1e6)), (window, None))
        decoder, cache = started(config)
        runs[window] = decode(decoder, cache, words(10))
    for narrow, wide in ((5, 6), (6, 7), (7, None)):
        # The token at index i has i + 1 rows in reach, its own included.
        same = (runs[narrow] == runs[wide]).all(axis=1)
        assert same.tolist() == [index < narrow for index in range(10)]


def test_a_window_counts_distance_and_not_rows():
    """A window of so many rows, which reaches further once positions have gaps."""
    decoder, cache = started("hybrid", "kv_raw", "keep")
    decode(decoder, cache, words(10))
    cache.evict_span(6, 3)
    q = np.ones((4, 8), np.float32)
    rows = np.ones((8, 2, 8), np.float32)
    rows[:, 0, 0] = np.arange(8)
    distance = 10 - np.append(cache.pos, 10)
    # Of positions 0 to 5, 9 and 10, a window of 6 reads 5, 9 and 10.
    far = attend(q, rows, rows, 1.0, distance, window=6)
    near = attend(q, rows[5:].copy(), rows[5:].copy(), 1.0, distance[5:])
    assert np.array_equal(far.view(np.uint32), near.view(np.uint32))


def test_attention_against_the_formula():
    """A query head that reads another's keys, a missing scale, a slope of the wrong sign."""
    rng = stream(6, "test")
    q = rng.standard_normal((4, 8), dtype=np.float32)
    k = rng.standard_normal((9, 2, 8), dtype=np.float32)
    v = rng.standard_normal((9, 2, 5), dtype=np.float32)
    slopes = np.array([0.5, 0.25, 0.125, 0.0625], np.float32)
    distance = np.array([20, 15, 9, 8, 6, 5, 3, 1, 0])
    for window, bias in ((None, None), (9, None), (None, slopes), (6, slopes)):
        out = attend(q, k, v, 0.3, distance, window=window, slopes=bias)
        for head in range(4):
            # In float64, so this is a matter of tolerance and not of bits.
            scores = 0.3 * (k[:, head // 2].astype(float) @ q[head].astype(float))
            if bias is not None:
                scores -= float(bias[head]) * distance
            scores[distance >= (window or 99)] = -np.inf
            weights = np.exp(scores - scores.max())
            want = weights / weights.sum() @ v[:, head // 2].astype(float)
            assert np.abs(out[head] - want).max() < 2e-6


def test_rows_behind_the_window_are_not_read():
    """A masked NaN that is multiplied by a weight of 0."""
    q = np.ones((2, 4), np.float32)
    rows = np.ones((5, 1, 4), np.float32)
    distance = np.arange(4, -1, -1)
    clean = attend(q, rows, rows, 0.5, distance, window=3)
    bad = rows.copy()
    bad[:2] = np.nan
    assert np.array_equal(attend(q, bad, bad, 0.5, distance, window=3), clean)
    assert np.isnan(attend(q, bad, bad, 0.5, distance, window=4)).all()


@pytest.mark.parametrize("case", range(8))
def test_attention_refuses_what_would_change_bits(case):
    """Float64, strided or misfitting rows that NumPy would take in another order."""
    q, k = np.ones((4, 8), np.float32), np.ones((3, 2, 8), np.float32)
    v, distance = np.ones((3, 2, 8), np.float32), np.array([2, 1, 0])
    wrong = [
        (q.astype(np.float64), k, v, distance),
        (q, np.ones((6, 2, 8), np.float32)[::2], v, distance),
        (q, k, np.asfortranarray(v), distance),
        (q, k, v[:2].copy(), distance),
        (q[:3].copy(), k, v, distance),
        (q, k, v, distance - 1),
        (q, k, v, distance + 6),
        (q, k[:, 0].copy(), v, distance),
    ]
    with pytest.raises(LayoutError):
        attend(*wrong[case][:3], 1.0, wrong[case][3], window=6)


def test_bad_tokens_and_positions_are_refused():
    """A token that wraps round to another, or a position that has no angle."""
    config = DecoderConfig((Rope(8),), (None,), max_positions=3)
    decoder, cache = started(config)
    for token in (-1, 64):
        with pytest.raises(LedgerError):
            decoder.step(cache, token)
    assert cache.length == 0
    decode(decoder, cache, words(3))
    with pytest.raises(RotationError):
        decoder.next_logits(cache, 0)
    for broken in (
        {"ropes": (), "windows": ()},
        {"ropes": (Rope(8),), "windows": (None, 4)},
        {"ropes": (Rope(8),), "windows": (0,)},
        {"ropes": (Rope(8),), "windows": (None,), "latent": 4, "alibi": True},
    ):
        with pytest.raises(LayoutError):
            DecoderConfig(**broken)

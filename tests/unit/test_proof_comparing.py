"""What the proof compares: bits and not numbers, odd rows too, and codes of rotated keys."""

from __future__ import annotations

import numpy as np
from proof_case import SEED

from kvsim.seeds import stream
from kvsim.tensors.proof.codes import stored_keys
from kvsim.tensors.proof.shapes import ODD, drawn_rows, rows_of
from kvsim.tensors.proof.tally import Tally


def test_bits_are_compared_and_not_numbers():
    tally = Tally()
    assert tally.words("zeros", np.float32([0.0, 1.0]), np.float32([-0.0, 1.0])) == 1
    nan = np.array([0x7FC00000, 0x7FC00001], np.uint32).view(np.float32)
    assert tally.words("NaN", nan, nan[::-1].copy()) == 2
    assert tally.words("NaN", nan, nan.copy()) == 0
    assert (tally.words_compared, tally.words_differing) == (6, 3)
    assert len(tally.failures) == 2
    assert not tally.holds


def test_other_shapes_and_types_differ_in_every_element():
    tally = Tally()
    assert tally.words("shape", np.zeros((2, 3)), np.zeros((3, 2))) == 6
    assert tally.words("type", np.zeros(4), np.zeros(4, np.float32)) == 4
    assert tally.words("nothing", np.zeros((0, 4)), np.zeros((0, 3))) == 1
    tally = Tally()
    tally.planes("planes", {"K": np.zeros(2)}, {"K": np.zeros(2), "V": np.zeros(2)})
    assert not tally.holds


def test_odd_rows_reach_the_cache_bit_for_bit():
    shape = rows_of("dense", "plain", "kv_raw").shape
    rows = drawn_rows(shape, 64, stream(SEED, "test"), odd="all")[0]
    for name in ("k", "v"):
        found = set(np.unique(rows[name].view(np.uint32)).tolist())
        assert set(ODD.view(np.uint32).tolist()) <= found
    assert np.isfinite(drawn_rows(shape, 64, stream(SEED, "test"), odd="values")[0]["k"]).all()


def test_stored_codes_are_those_of_the_rotated_key():
    """Codes of the wrong rows, or a scale that covers two parts of a key."""
    shape = rows_of("mla", "plain", "kv_raw").shape
    spec = shape.families[0].rows[0]
    keys = stream(SEED, "test").standard_normal((3, 24), dtype=np.float32)
    keys[:, :16] *= 100
    found = stored_keys("int8", spec, keys)
    assert found["K"].shape == (3, 24)
    assert found["K_scale"].shape == (3, 2)
    assert (found["K_scale"][:, 0] > 10 * found["K_scale"][:, 1]).all()

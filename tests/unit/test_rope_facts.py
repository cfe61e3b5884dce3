"""Which facts and parameters make a rotation, and which are refused by name."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from rope_facts import LLAMA, PHI

from kvsim.errors import LayoutError, RotationError
from kvsim.tensors.rope import Rope, rope_of_facts

REFUSED = {
    "Command-A (03-2025, 111B)": "theta is unknown",
    "MiMo-V2.5": "theta is unknown",
    "Phi-4-mini": "short_factors is unknown",
}


def test_every_model_of_the_catalogue_builds_or_is_refused_by_name(shared):
    models = json.loads((shared / "models.json").read_text())
    refused = {}
    for model in models:
        entry = model["rope"]
        entries = [entry] if "theta" in entry else list(entry.values())
        for layer in model["layers"]:
            # A whole key where there is one: `partial` is a share of it.
            width = layer.get("k_head_dim") or layer.get("rope_dim")
            for facts in entries:
                try:
                    rope = rope_of_facts(facts, width)
                except LayoutError as error:
                    refused[model["name"]] = str(error)
                    continue
                assert 0 < rope.dim <= width
                assert np.isfinite(rope.inverse_frequencies()).all()
                assert layer.get("k_head_dim") is None or layer.get("rope_dim") in (None, rope.dim)
    assert len(models) == 36
    assert set(refused) == set(REFUSED)
    for name, reason in REFUSED.items():
        assert reason in refused[name]


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"type": "default"}, "theta is unknown"),
        ({"theta": None}, "theta is unknown"),
        ({"theta": 1e4, "partial": None}, "partial is unknown"),
        ({"theta": 1e4, "type": None}, "type is unknown"),
        ({"theta": 1e4, "type": "dynamic"}, "not 'dynamic'"),
        ({"theta": 1e4, "type": "linear"}, "factor is unknown"),
        ({**LLAMA, "original_max": None}, "original_max is unknown"),
        ({**PHI, "long_factors": None}, "long_factors is unknown"),
        ({**PHI, "factor": None}, "factor is unknown"),
        ({"theta": "1e4"}, "theta must be finite numbers, not '1e4'"),
        ({"theta": math.nan}, "theta must be finite numbers"),
        ({**PHI, "short_factors": ["a"] * 48}, "short_factors must be finite numbers"),
        ({"theta": 1e4, "partial": 0.5, "rotary_dim": 32}, "rotary_dim is 32"),
    ],
)
def test_facts_that_are_missing_or_contradict_are_refused(facts, reason):
    with pytest.raises(LayoutError, match=reason):
        rope_of_facts(facts, 128)


def test_facts_without_a_type_are_plain():
    assert rope_of_facts({"theta": 1e4}, 64) == Rope(64)
    assert rope_of_facts({"theta": 5e6, "partial": 0.5, "rotary_dim": 64}, 128) == Rope(64, 5e6)


@pytest.mark.parametrize(
    "wrong",
    [
        {"dim": 7},
        {"dim": -2},
        {"theta": 0.0},
        {"theta": -1.0},
        {"theta": math.inf},
        {"theta": math.nan},
        {"factor": 0.0},
        {"factor": math.nan},
        {"attention_factor": 0.0},
        {"scaling": "dynamic"},
        {"scaling": "llama3"},
        {"scaling": "yarn", "original_context": 1},
        {"scaling": "yarn", "original_context": 64, "theta": 1.0},
        {"scaling": "yarn", "original_context": 64, "mscale": -1.0},
        {"low_freq_factor": 5.0, "high_freq_factor": 4.0},
        {"beta_fast": 1.0, "beta_slow": 2.0},
        {"share": 0.0},
        {"share": 1.5},
        {"scaling": "longrope", "original_context": 64},
        {"scaling": "longrope", "original_context": 64, "short_factors": (1.0,) * 4},
        {
            "scaling": "longrope",
            "original_context": 64,
            "short_factors": (1.0,) * 4,
            "long_factors": (1.0, 1.0, 0.0, 1.0),
        },
    ],
)
def test_parameters_that_are_no_rotation_are_refused(wrong):
    with pytest.raises(RotationError):
        Rope(**{"dim": 8, **wrong})

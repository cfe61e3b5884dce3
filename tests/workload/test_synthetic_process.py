"""The synthetic process's parameters: what is drawn has the moments that they say."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from synthetic_signals import PARTS, UNITS, signals

from kvsim.policies import Attention
from kvsim.workload.synthetic import Process, SyntheticSignals
from kvsim.workload.synthetic_process import MOST_SPREAD, draw_units


def test_key_norms_are_the_lengths_of_the_keys():
    made = signals(300, process=Process(dim=16)).observe(np.arange(300))
    assert made["keys"].shape == (*UNITS, 300, 16)
    assert np.linalg.norm(made["keys"], axis=3) == pytest.approx(made["key_norms"], rel=1e-5)


def test_keys_lean_to_a_mean_direction_and_salient_ones_less():
    made = signals(4096, needs=("attention", "keys", "value_norms"))
    tokens = made._tokens
    direction = tokens.keys[:, :4096] / np.linalg.norm(tokens.keys[:, :4096], axis=2, keepdims=True)
    cosine = (direction * tokens.units.direction[:, None]).sum(axis=2)
    assert cosine[:, 0] == pytest.approx(0, abs=1e-6)
    assert cosine[:, 1:].mean() == pytest.approx(0.6, abs=0.02)
    salience = np.log(tokens.salience[:, 1:4096])
    norms = np.log(tokens.key_norms[:, 1:4096])
    for unit in range(6):
        assert np.corrcoef(salience[unit], cosine[unit, 1:])[0, 1] == pytest.approx(-1, abs=1e-3)
        assert np.corrcoef(salience[unit], norms[unit])[0, 1] == pytest.approx(-0.25, abs=0.06)
        assert norms[unit].std() == pytest.approx(0.1, rel=0.1)
    assert tokens.key_norms[:, 0] == pytest.approx(tokens.units.key_norm * 0.3, rel=0.5)


def log_salience(process, tokens=8192, units=(6, 4)):
    made = SyntheticSignals(process, units, 5, 0, Attention, needs=())
    made.extend(tokens)
    logs = np.log(made._tokens.salience[:, :tokens].astype(np.float64))
    logs -= logs.mean(axis=1, keepdims=True)
    return (logs / made._tokens.units.spread[:, None]).reshape(*units, tokens)


def test_correlations_are_those_of_the_parameters():
    p = Process(sinks=0, shared=0.1, layer=0.5, depth_layers=3.0, passage=0.3, passage_tokens=10.0)
    z = log_salience(p)
    assert z.std() == pytest.approx(1, abs=0.03)
    heads = np.corrcoef(z[2])[np.triu_indices(4, 1)].mean()
    assert heads == pytest.approx(0.6, abs=0.04)
    for distance in (1, 3):
        pairs = [np.corrcoef(z[i, 0], z[i + distance, 1])[0, 1] for i in range(6 - distance)]
        assert np.mean(pairs) == pytest.approx(0.1 + 0.5 * np.exp(-distance / 3), abs=0.05)
    for lag in (1, 2, 5, 20):
        want = 0.7 * 0.2**lag + 0.3 * np.exp(-lag / 10)
        assert (z[..., lag:] * z[..., :-lag]).mean() == pytest.approx(want, abs=0.04)


def test_extreme_parameters_stay_finite():
    wild = Process(
        spread=MOST_SPREAD, short_tokens=0.01, long_tokens=1e6, sinks=100, sink_share=0.9, sink_sd=4
    )
    found = signals(500, process=wild).observe(np.arange(500))
    for part in PARTS:
        assert np.isfinite(getattr(found["attention"], part)).all()
    assert np.isfinite(found["keys"]).all()


def test_every_parameter_is_documented_and_in_range():
    document = Process.__doc__ or ""
    for field in dataclasses.fields(Process):
        assert field.name in document
    assert draw_units(Process(), 4, 0).amplitude.shape == (3, 4)

"""The registry: every model by name, its parameters described, and bad ones refused."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest

from kvsim.errors import LedgerError
from kvsim.paging.physical.model import Figures
from kvsim.paging.physical.models import MODELS, build, describe

# What has no default.
NEEDED = {
    "pages": 64,
    "page_bytes": 2**18,
    "layers": 2,
    "slots": 64,
    "token_bytes": 128,
}


def needed(name: str) -> dict[str, int]:
    entry = next(entry for entry in describe() if entry["name"] == name)
    return {each["name"]: NEEDED[each["name"]] for each in entry["parameters"] if each["required"]}


def test_the_models_of_the_design_are_there():
    wanted = {"fixed_pool", "token_pool", "extents", "slab", "caching_allocator", "async_pool"}
    assert wanted | {"contiguous", "kvcached"} == set(MODELS)
    json.dumps(describe(), allow_nan=False)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_built_from_its_defaults(name):
    model = build(name, **needed(name))
    figures = model.figures()
    assert isinstance(figures, Figures)
    assert (figures.held_bytes, figures.returned_bytes) == (0, 0)
    assert set(model.counters()) > {
        "mapped_bytes_peak",
        "mapped_bytes_total",
        "returned_bytes_total",
    }
    model.check()


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_is_described(name):
    for each in fields(MODELS[name].parameters):
        assert each.metadata["doc"].endswith(".")
    assert MODELS[name].source
    assert MODELS[name].model.__doc__
    assert MODELS[name].events in ("pages", "bytes", "sequences")


@pytest.mark.parametrize("name", MODELS)
def test_bad_parameters_are_refused(name):
    good = needed(name)
    with pytest.raises(LedgerError, match="has no parameter 'pagse'"):
        build(name, **good, pagse=1)
    for key in good:
        with pytest.raises(LedgerError, match=f"needs {key}"):
            build(name, **{k: v for k, v in good.items() if k != key})
        for bad in (0, -1, 1.0, "8", None, True, 2**70):
            with pytest.raises(LedgerError, match=key):
                build(name, **(good | {key: bad}))


def test_an_unknown_model():
    with pytest.raises(LedgerError, match="did you mean 'fixed_pool'"):
        build("fixed-pool")

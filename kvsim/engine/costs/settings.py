"""The table [cost] of a scenario, and the cost model that it makes of a layout and a device."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from importlib import resources

from kvsim.engine.costs.devices import Device, load_device
from kvsim.engine.costs.roofline import CostModel
from kvsim.errors import ScenarioError
from kvsim.layout import KVLayout

FRACTION = {"above": 0.0, "most": 1.0}
RATE = {"above": -1e-300, "most": 1e18}


@dataclass(frozen=True)
class Cost:
    """Every constant of the cost model; 0 takes it from the catalogue.

    Attributes
    ----------
    device : str
        A name of `kvsim devices`, or the path of a JSON file.
    parameters : int
        Active parameters of a token's forward pass.
    weights_bytes : int
        Weights read in a step; 0 for 2 bytes a parameter.
    query_heads : int
        Query heads of a layer, for the operations of attention.
    memory_efficiency, compute_efficiency : float
        Shares of the published rates that are reached; 1 is untuned.
    bandwidth_bytes_per_s, flops_per_s, host_bytes_per_s : float
    step_overhead_ns : int
        Added to each step.
    """

    device: str = "H100-SXM"
    parameters: int = field(default=0, metadata={"least": 0})
    weights_bytes: int = field(default=0, metadata={"least": 0})
    query_heads: int = field(default=0, metadata={"least": 0})
    memory_efficiency: float = field(default=1.0, metadata=FRACTION)
    compute_efficiency: float = field(default=1.0, metadata=FRACTION)
    bandwidth_bytes_per_s: float = field(default=0.0, metadata=RATE)
    flops_per_s: float = field(default=0.0, metadata=RATE)
    host_bytes_per_s: float = field(default=0.0, metadata=RATE)
    step_overhead_ns: int = field(default=0, metadata={"least": 0})


def known_parameters(layout: KVLayout) -> int:
    """Return the parameter count of a catalogue model, 0 where kvsim knows none."""
    text = resources.files("kvsim.engine.costs").joinpath("parameters.json").read_text("utf-8")
    entry = json.loads(text).get(layout.name)
    return int(entry["parameters"]) if entry else 0


def pair_flops(layout: KVLayout, query_heads: int) -> int:
    """Return the operations of attention for one (query, key) pair over all layers.

    Raises
    ------
    ScenarioError
        If the number of query heads is neither known nor given.
    """
    total = 0
    for group in layout.groups:
        heads = query_heads or group.q_heads
        if not heads:
            raise ScenarioError(
                f"cost.query_heads: {layout.name} does not say how many there are; give them"
            )
        for width in (group.k_head_dim, group.v_head_dim):
            total += 2 * heads * group.count * (width or 0)
    return total


def cost_model(
    layout: KVLayout, cost: Cost, planes: str = "kv", element_bytes: int = 2
) -> tuple[CostModel, Device]:
    """Return the cost model of a layout on a device.

    Raises
    ------
    ScenarioError
        Naming the key that has to be given.
    """
    device = load_device(cost.device)
    parameters = cost.parameters or known_parameters(layout)
    if not parameters:
        raise ScenarioError(
            f"cost.parameters: kvsim does not know how many {layout.name} has; give them"
        )
    return (
        CostModel(
            weights_bytes=cost.weights_bytes or 2 * parameters,
            parameters=parameters,
            row_bytes=sum(layout.unit_row_bytes(planes, element_bytes)),
            pair_flops=pair_flops(layout, cost.query_heads),
            bandwidth_bytes_per_s=cost.bandwidth_bytes_per_s or device.bandwidth_bytes_per_s,
            flops_per_s=cost.flops_per_s or device.flops_per_s,
            host_bytes_per_s=cost.host_bytes_per_s or device.host_bytes_per_s,
            memory_efficiency=cost.memory_efficiency,
            compute_efficiency=cost.compute_efficiency,
            step_overhead_ns=cost.step_overhead_ns,
        ),
        device,
    )

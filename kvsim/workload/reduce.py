"""How the recording inside the package was made from a full one: fewer layers, float16.

python -m kvsim.workload.reduce FULL.npz REDUCED.npz
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from kvsim.workload.recorded import ARRAYS, SCALED, load

SCALE_BITS = 15  # Lifts attention out of float16's subnormals; 1.0 becomes 32,768, still finite.


def reduced(path: str, every: int = 3) -> dict[str, np.ndarray]:
    """Return the arrays of a reduced recording: every third layer, as float16.

    Parameters
    ----------
    path : str
        A full recording.
    every : int
        Distance between the layers that are kept, counted from layer 0.
    """
    full = load(path)
    layers = np.arange(0, full.unit_shape[0], every, dtype=np.int32)
    arrays = {"layers": layers, "scale_bits": np.array(SCALE_BITS, np.int32)}
    for name in ARRAYS:
        array = getattr(full, name)[layers]
        scale = np.float32(2.0**SCALE_BITS if name in SCALED else 1.0)
        arrays[name] = (array * scale).astype(np.float16)
    return arrays


if __name__ == "__main__":
    np.savez_compressed(Path(sys.argv[2]), **reduced(sys.argv[1]))  # type: ignore[arg-type]

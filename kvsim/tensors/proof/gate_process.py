"""The FMA gate's own process: compile the kernels, print what their machine code says as JSON."""

from __future__ import annotations

import json

from kvsim.tensors.proof.assembly import read

if __name__ == "__main__":
    print(json.dumps(read()))

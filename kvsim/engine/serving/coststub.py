import numpy as np
from kvsim.jit import kernel
@kernel
def step_ns(c, dt, dr, pt, pr, pp, mb, hb):
    return np.int64(1000000 + dr * 10 + pt * 1000 + pr + pp // 100 + mb // 10 + hb // 5)

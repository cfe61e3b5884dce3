"""Rotations of models as a catalogue states them."""

from __future__ import annotations

LLAMA = {"theta": 5e5, "type": "llama3", "partial": 1.0, "factor": 32.0, "original_max": 8192}
GPT_OSS = {"theta": 15e4, "type": "yarn", "partial": 1.0, "factor": 32.0, "original_max": 4096}
DEEPSEEK = {"theta": 1e4, "type": "yarn", "partial": 1.0, "factor": 40, "original_max": 4096}
LAGUNA = {"theta": 5e5, "type": "yarn", "partial": 0.5, "factor": 32.0, "original_max": 8192}
GEMMA_3 = {"theta": 1e6, "type": "linear", "partial": 1.0, "factor": 8.0}
GEMMA_4 = {"theta": 1e6, "type": "proportional", "partial": 0.25}
PHI = {
    "theta": 1e4,
    "type": "longrope",
    "partial": 0.75,
    "original_max": 4096,
    "factor": 32.0,
    "short_factors": [1.0] * 48,
    "long_factors": [1.0 + pair / 4 for pair in range(48)],
}

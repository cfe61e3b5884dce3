"""The serving engine: continuous batching on the ledger, in steps that a kernel leaps over."""

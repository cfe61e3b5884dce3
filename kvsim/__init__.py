"""kvsim: what the eviction of tokens from a paged KV cache really frees, in bytes."""

__version__ = "0.1.0"

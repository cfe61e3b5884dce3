"""Larger arrays for requests that were not known when an engine was made."""

from __future__ import annotations

import numpy as np

from kvsim.engine.serving.arrays import Serving


def larger(array: np.ndarray, need: int, fill: int = 0) -> np.ndarray:
    """Return an array whose last axis holds at least `need`: itself, or a copy twice as long."""
    held = array.shape[-1]
    if need <= held:
        return array
    grown = np.full((*array.shape[:-1], max(need, 2 * held)), fill, array.dtype)
    grown[..., :held] = array
    return grown


def with_request(
    serving: Serving, count: int, keys: int, own_keys: int, longest: int, page_tokens: int
) -> Serving:
    """Return arrays with room for one more request.

    Parameters
    ----------
    serving : Serving
    count : int
        Requests, with the new one.
    keys : int
        Given keys of all of them.
    own_keys : int
        All keys there are: `page_of` has a place for each, if there is an index.
    longest : int
        Tokens of the new one.
    page_tokens : int
    """
    requests = serving.requests
    if count > requests.shape[0]:
        requests = np.zeros((max(count, 2 * requests.shape[0]), requests.shape[1]), np.int64)
        requests[: serving.requests.shape[0]] = serving.requests
    scratch = {
        name: larger(getattr(serving, name), need)
        for name, need in (
            ("hits", longest // page_tokens + 1),
            ("draws", longest),
            ("victims", longest),
            ("scratch", longest + 2),
        )
        if getattr(serving, name).shape[-1]
    }
    # Runs of victims have at least one token.
    scratch["means"] = larger(serving.means, max(longest, 1))
    return serving._replace(
        requests=requests,
        keys=larger(serving.keys, keys),
        page_of=larger(serving.page_of, own_keys, -1) if serving.page_of.size else serving.page_of,
        heap=larger(serving.heap, count + 1),
        **scratch,
    )

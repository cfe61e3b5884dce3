"""The step loop of the serving engine with something called inside each step.

The loop itself runs uncompiled, from the same source; what it calls is compiled as always. Only
so can a test look at a step when everything is scheduled and nobody has left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import pytest

from kvsim.engine.serving import decoding
from kvsim.engine.serving import engine as face
from kvsim.engine.serving import leap as loop


class Inside(Protocol):
    """What is called inside each step."""

    def between_steps(self) -> None:
        """Before a step, and before the leavers of the last one are freed."""

    def before_press(self, rank: int) -> None:
        """Before an eviction under pressure."""

    def compute(self) -> None:
        """When everything that a step computes is scheduled."""


def _source(kernel: Any) -> Any:
    """Return a kernel as it was written; without compilation it is that already."""
    return getattr(kernel, "py_func", kernel)


def _after(call: Callable[[Any], None], kernel: Any) -> Any:
    def called(*arguments: Any) -> Any:
        call(arguments)
        return kernel(*arguments)

    return called


@contextmanager
def called_inside(inside: Inside) -> Iterator[None]:
    """Let every engine call `inside` in each of its steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(face, "leap", _source(loop.leap))
        for name in ("look", "press_first"):
            patch.setattr(loop, name, _source(getattr(loop, name)))
        patch.setattr(decoding, "find_room", _source(decoding.find_room))
        patch.setattr(
            decoding, "press", _after(lambda given: inside.before_press(given[5]), decoding.press)
        )
        patch.setattr(loop, "leavers", _after(lambda _: inside.between_steps(), loop.leavers))
        patch.setattr(loop, "duration", _after(lambda _: inside.compute(), loop.duration))
        yield

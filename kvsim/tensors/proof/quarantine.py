"""The quarantine invariant: a span evicted before any later token read it was never there.

Decoded tokens' rows depend on every earlier row, so this is told from eviction after the fact,
which leaves what later tokens have absorbed: that one must differ, and is the control.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from kvsim.seeds import stream
from kvsim.tensors.contiguous import ContiguousCache
from kvsim.tensors.decoder import TinyDecoder
from kvsim.tensors.paged_cache import PagedCache, SequenceView
from kvsim.tensors.proof.shapes import MAX_POSITIONS, SIZES, decoder_of
from kvsim.tensors.proof.tally import Tally

PREFIX, SPAN, LATER = 9, 5, 8
PAGE = 4
ROTATIONS = ("plain", "per_layer_theta", "llama3", "yarn")
COMPACTIONS = ("none", "rebuild", "forward", "hole_fill")


def cases(seed: int) -> Iterator[tuple[str, Callable[[], Tally]]]:
    """Yield the name of each case and a function that runs it."""
    number = 0
    for family in SIZES:
        for compaction, rotation in zip(COMPACTIONS, ROTATIONS, strict=True):
            for masked in (False, True):
                if masked and family == "mla":
                    continue  # Its appended key is two planes; the other families' is k_raw.
                name = f"{family}, {rotation}, {compaction}, " + (
                    "behind tokens that never read it" if masked else "at the end"
                )
                yield name, _bound(name, family, rotation, compaction, masked, seed, number)
                number += 1


def _bound(
    name: str, family: str, rotation: str, compaction: str, masked: bool, seed: int, number: int
) -> Callable[[], Tally]:
    def case() -> Tally:
        tally = Tally(cases=1, case=f"quarantine: {name}")
        tokens = stream(seed, "test", 2, number)
        decoder = decoder_of(family, rotation)
        quarantined(decoder, compaction, tally, tokens, masked=masked)
        return tally

    return case


def quarantined(
    decoder: TinyDecoder,
    compaction: str,
    tally: Tally,
    rng: np.random.Generator,
    *,
    masked: bool = False,
    late: bool = False,
) -> None:
    """Decode with a span that is evicted, and without it; compare rows and logits.

    Parameters
    ----------
    decoder : TinyDecoder
    compaction : str
    tally : Tally
    rng : numpy.random.Generator
        Draws the tokens.
    masked : bool
        Whether tokens that never read the span are appended behind it before it goes, so that
        they are renumbered. By default it goes at once.
    late : bool
        Whether those tokens do read it: then nothing is quarantined, and all must differ.
    """
    prefix, span, later, more = (
        rng.integers(decoder.config.vocabulary, size=count).tolist()
        for count in (PREFIX, SPAN, LATER, LATER)
    )
    shape = decoder.shape("kv_raw", MAX_POSITIONS)
    never = ContiguousCache(shape)
    paged = PagedCache(shape, PAGE, positions="renumber", compaction=compaction)
    view = paged.view(paged.open())
    _decode(decoder, view, [*prefix, *span])
    if not (masked or late):
        paged.evict_span(view.sequence, PREFIX, SPAN)
    theirs = _decode(decoder, never, [*prefix, *later])[PREFIX:]
    if masked:
        rows = never.rows()
        new = {"k": rows["k_raw"][PREFIX:].copy(), "v": rows["V"][PREFIX:].copy()}
        paged.append(view.sequence, [new])
    else:
        tally.words("logits", np.stack(_decode(decoder, view, later)), np.stack(theirs))
    if masked or late:
        paged.evict_span(view.sequence, PREFIX, SPAN)
    tally.planes("rows", view.rows(), never.rows())
    ours = _decode(decoder, view, more)
    tally.words("next logits", np.stack(ours), np.stack(_decode(decoder, never, more)))
    tally.planes("next rows", view.rows(), never.rows())
    paged.check()


def _decode(
    decoder: TinyDecoder, cache: SequenceView | ContiguousCache, tokens: list[int]
) -> list[np.ndarray]:
    return [decoder.step(cache, token) for token in tokens]

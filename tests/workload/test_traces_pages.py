"""Pages out of blocks, against the tokens that they stand for; figures; conversion and back."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
import trace_files as files
from hypothesis import event, given
from hypothesis import strategies as st

from kvsim.errors import WorkloadError
from kvsim.workload.traces import Request, Trace
from kvsim.workload.traces.chains import Chains
from kvsim.workload.traces.convert import convert, milliseconds
from kvsim.workload.traces.numbering import Numbering
from kvsim.workload.traces.reblock import Reblocker, weights
from kvsim.workload.traces.stats import quantile, stats, tail_waste


def request(text: list, block_tokens: int, up: bool, chunks: list[int] | None = None) -> Request:
    """A request whose ids name everything up to the end of their block, as chained hashes do."""
    count = -(-len(text) // block_tokens) if up else len(text) // block_tokens
    ends = [min((n + 1) * block_tokens, len(text)) for n in range(count)]
    ids = [hash(tuple(text[:end])) for end in ends]
    return Request(0, max(len(text), 1), 0, np.array(ids, dtype=np.int64), rounds_up=up)


TEXTS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=40), max_size=12)


def shared(pages: list[np.ndarray]) -> list[int]:
    """How many leading pages of each request an earlier request had."""
    seen: set[int] = set()
    found = []
    for one in pages:
        known = [page in seen for page in one.tolist()]
        found.append(known.index(False) if False in known else len(known))
        assert not any(known[found[-1] :]), "a page behind a new one was known"
        seen.update(one.tolist())
    return found


def wanted(texts: list, page_tokens: int, block_tokens: int, up: bool) -> list[int]:
    """The same from the tokens: a page is shared if a request had all tokens up to its end.

    A partial last page is shared with a request that ends there too.
    """
    found = []
    for number, text in enumerate(texts):
        count = -(-len(text) // page_tokens) if up else len(text) // page_tokens
        known = 0
        while known < count:
            end = (known + 1) * page_tokens
            part = text[:end]
            whole = len(part) == end
            if not any(
                other[: len(part)] == part and (whole or len(other) == len(part))
                for other in texts[:number]
            ):
                break
            known += 1
        found.append(known)
    return found


@pytest.mark.parametrize("up", [False, True])
@given(texts=TEXTS, block_tokens=st.integers(1, 4), ratio=st.integers(1, 5))
def test_multiples_are_exact(up, texts, block_tokens, ratio):
    page_tokens = block_tokens * ratio
    reblock = Reblocker(block_tokens, page_tokens)
    pages = [reblock(request(text, block_tokens, up)) for text in texts]
    assert shared(pages) == wanted(texts, page_tokens, block_tokens, up)
    for text, one in zip(texts, pages, strict=True):
        assert one.size == (-(-len(text) // page_tokens) if up else len(text) // page_tokens)
    assert reblock.caveat is None
    event(f"some page is shared: {any(shared(pages))}")


@pytest.mark.parametrize("up", [False, True])
@given(texts=TEXTS, page_tokens=st.integers(1, 4), ratio=st.integers(2, 4))
def test_divisors_keep_what_whole_blocks_share(up, texts, page_tokens, ratio):
    block_tokens = page_tokens * ratio
    reblock = Reblocker(block_tokens, page_tokens)
    requests = [request(text, block_tokens, up) for text in texts]
    pages = [reblock(one) for one in requests]
    assert "cannot be recovered" in reblock.caveat
    blocks = wanted(texts, block_tokens, block_tokens, up)
    exact = wanted(texts, page_tokens, page_tokens, up)
    for text, one, got, block, best in zip(texts, pages, shared(pages), blocks, exact, strict=True):
        assert one.size == (-(-len(text) // page_tokens) if up else len(text) // page_tokens)
        assert got == min(block * ratio, one.size)
        assert got <= best


@given(
    prompts=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), max_size=10),
    sizes=st.lists(st.integers(1, 9), min_size=4, max_size=4),
    page_tokens=st.integers(1, 12),
    beyond=st.integers(0, 5),
)
def test_pages_of_chunks_are_exact_at_any_size(prompts, sizes, page_tokens, beyond):
    reblock = Reblocker(0, page_tokens)
    texts, pages = [], []
    for number, prompt in enumerate(prompts):
        # Chunks of unlike content; the tokens behind them are nobody else's.
        text = [(chunk, at) for chunk in prompt for at in range(sizes[chunk])]
        text += [("own", number, at) for at in range(beyond)]
        texts.append(text)
        lengths = np.array([sizes[chunk] for chunk in prompt], dtype=np.int64)
        ids = np.array(prompt, dtype=np.int64)
        pages.append(reblock(Request(0, len(text), 0, ids, chunk_tokens=lengths)))
    assert shared(pages) == wanted(texts, page_tokens, page_tokens, up=False)
    assert [one.size for one in pages] == [len(text) // page_tokens for text in texts]


def test_other_sizes_are_refused():
    for size in (24, 33, 1000):
        with pytest.raises(WorkloadError, match="neither divides the other"):
            Reblocker(16, size)
    for size in (0, -16, 10**7):
        with pytest.raises(WorkloadError, match="pages cannot have"):
            Reblocker(16, size)
    same = Reblocker(16, 16)
    ids = np.array([5, 3], dtype=np.int64)
    assert same(Request(0, 32, 0, ids)) is ids


def test_weights_of_pages():
    one = Request(0, 70, 0, np.arange(3), rounds_up=True)
    assert weights(one, 3, 32).tolist() == [32, 32, 6]
    assert weights(one, 2, 32).tolist() == [32, 32]
    assert weights(one, 0, 32).tolist() == []
    chunked = one._replace(chunk_tokens=np.array([40, 20, 4]))
    assert weights(chunked, 3, 0).tolist() == [40, 20, 4]


@given(st.lists(st.lists(st.integers(-2, 2), max_size=8), max_size=30))
def test_chains_number_prefixes(lists):
    chains, known = Chains(), {}
    for ids in lists:
        prefixes = [tuple(ids[: i + 1]) for i in range(len(ids))]
        want = [known.setdefault(prefix, len(known)) for prefix in prefixes]
        assert chains(np.array(ids, dtype=np.int64)).tolist() == want
    assert chains.count == len(known)
    numbers = {number: prefix for prefix, number in known.items()}
    for number, parent in enumerate(chains.parents().tolist()):
        assert known.get(numbers[number][:-1], -1) == parent


@given(st.lists(st.lists(st.integers(-2, 2), max_size=8), max_size=30), st.integers(0, 30))
def test_chains_of_many_lists_are_those_of_each(lists, cut):
    chains, many = Chains(), Chains()
    want = [n for ids in lists for n in chains(np.array(ids, dtype=np.int64)).tolist()]
    found = []
    for part in (lists[:cut], lists[cut:]):
        starts = np.cumsum([0, *map(len, part)])
        ids = np.array([one for ids in part for one in ids], dtype=np.int64)
        found += many.each(ids, starts).tolist()
    assert found == want
    assert many.count == chains.count


def test_chains_of_many_lists_in_pieces(monkeypatch):
    # Lists shorter than a piece, longer ones, and empty ones where a piece ends.
    monkeypatch.setattr("kvsim.workload.traces.chains._PIECE", 16)
    rng = np.random.default_rng(5)
    lengths = rng.choice([0, 1, 7, 16, 40], 300)
    lists = [rng.integers(0, 3, length) for length in lengths]
    chains, many = Chains(), Chains()
    want = np.concatenate([chains(ids) for ids in lists])
    starts = np.cumsum([0, *lengths])
    assert np.array_equal(many.each(np.concatenate(lists), starts), want)
    # What the last list began with is guessed from, and found, by a single list too.
    assert np.array_equal(many(lists[-1]), chains(lists[-1]))


def test_chains_grow_and_fresh_numbers_belong_to_nobody():
    chains = Chains()
    rng = np.random.default_rng(5)
    lists = [rng.integers(0, 50, 40) for _ in range(1500)]
    before = []
    for ids in lists:
        before.append(chains(ids))
        assert chains.fresh() == chains.count - 1
    count = chains.count
    assert count > 40_000
    assert all(np.array_equal(chains(i), n) for i, n in zip(lists, before, strict=True))
    assert chains.count == count


@given(
    pieces=st.lists(
        st.lists(
            st.one_of(st.integers(0, 40), st.integers(-(1 << 63), (1 << 63) - 1)), max_size=30
        ),
        max_size=8,
    )
)
def test_numbering_is_one_to_one_and_small(pieces):
    number, known = Numbering(), {}
    for piece in pieces:
        got = number(np.array(piece, dtype=np.int64)).tolist()
        for one, mine in zip(piece, got, strict=True):
            assert known.setdefault(one, mine) == mine
            assert 0 <= mine < number.size
    assert len(set(known.values())) == len(known)


def test_stats_by_hand(tmp_path):
    found = stats(files.write(tmp_path, files.TEXTS["mooncake"]), 512)
    assert {key: found[key] for key in ("format", "requests", "input_tokens", "output_tokens")} == {
        "format": "mooncake",
        "requests": 3,
        "input_tokens": 3254,
        "output_tokens": 11,
    }
    assert (found["duration_s"], found["page_tokens"], found["sorted"]) == (0.027, 512, True)
    # 8 ids, of which 0, 1 and 0 again came up before; the last block of the first prompt is
    # partial, and none of the shared ones is.
    assert (found["blocks"], found["distinct_blocks"], found["sharing"]) == (8, 5, 3 / 8)
    assert found["prefix_sharing_tokens"] == 3 * 512 / 3254
    # 1203, 1031 and 1031 tokens in 3 pages each.
    assert found["tail_waste"] == (9 * 512 - 3265) / (9 * 512)
    assert found["tail_waste_by_page_tokens"]["512"] == found["tail_waste"]
    coarse = stats(files.write(tmp_path, files.TEXTS["mooncake"]), 1024)
    # Pages (0 1) (2) | (0 1) | (0 3) (4).
    assert (coarse["pages"], coarse["distinct_pages"]) == (5, 4)
    with pytest.raises(WorkloadError, match="pages of 100 tokens"):
        stats(files.write(tmp_path, files.TEXTS["mooncake"]), 100)


def test_stats_of_conversations_and_of_lengths_alone(tmp_path):
    found = stats(files.write(tmp_path, files.TEXTS["kv-cache-tester"]))
    assert found["duration_s"] is None
    assert (found["conversations"], found["conversation_duration_max_s"]) == (2, 13.0)
    # After [1 2]: [7]; after it [7 8], which goes on; then [1 2 3], and [1 4].
    assert found["diverging_requests"] == 3 + 1
    found = stats(files.write(tmp_path, files.VIDUR))
    assert (found["duration_s"], found["sharing"], found["page_tokens"]) == (None, None, 16)


def test_stats_count_blank_lines_and_disorder_and_refuse_the_rest(tmp_path):
    good = files.TEXTS["mooncake"]
    path = files.write(tmp_path, good + "\n" + json.dumps(files.MOONCAKE[0]) + "\n")
    found = stats(path)
    assert (found["requests"], found["blank_lines"], found["sorted"]) == (4, 1, False)
    assert (found["unsorted_requests"], found["skipped"]) == (1, 0)
    path = files.write(tmp_path, good + "oops\n")
    with pytest.raises(WorkloadError, match=r"^trace\.txt:4: no JSON"):
        stats(path)
    found = stats(path, skip_bad=True)
    assert (found["requests"], found["skipped"]) == (3, 1)


def test_quantiles_and_waste():
    ordered = np.arange(10, 110)
    assert [quantile(ordered, share) for share in (0, 0.5, 0.99)] == [10, 60, 109]
    assert quantile(np.array([7]), 0.99) == 7
    assert tail_waste(np.array([16, 1, 17]), 16) == 30 / 64
    assert tail_waste(np.array([16, 1, 17]), 1) == 0.0


@pytest.mark.parametrize("name", ["mooncake", "qwen-bailian", "block-hash", "kv-cache-tester"])
def test_converted_and_read_again_it_is_the_same_trace(tmp_path, name):
    path, out = files.write(tmp_path, files.TEXTS[name]), tmp_path / "out.jsonl"
    said = convert(path, out)
    before, after = Trace(path), Trace(out)
    assert (after.format, after.clock) == ("block-hash", before.clock)
    assert after.block_tokens == before.block_tokens == said["page_tokens"]
    for one, other in zip(before.requests(), after.requests(), strict=True):
        assert one.hash_ids.tolist() == other.hash_ids.tolist()
        assert one._replace(hash_ids=None) == other._replace(hash_ids=None)


@pytest.mark.parametrize("name", ["mooncake", "kv-cache-tester", "ragpulse"])
def test_conversion_re_blocks_exactly_and_in_steps(tmp_path, name):
    path = files.write(tmp_path, files.TEXTS[name])
    base = Trace(path).block_tokens or 4
    once, twice = tmp_path / "once", tmp_path / "twice"
    convert(path, tmp_path / "half.gz", base * 2)
    assert (tmp_path / "half.gz").read_bytes()[:2] == b"\x1f\x8b"
    convert(tmp_path / "half.gz", twice, base * 4)
    convert(path, once, base * 4)
    texts = [[one.hash_ids.size for one in Trace(each).requests()] for each in (once, twice)]
    assert texts[0] == texts[1]
    found = [stats(each)["sharing"] for each in (once, twice)]
    assert found[0] == found[1] == stats(path, base * 4)["sharing"]


def test_conversion_refuses_what_it_cannot_do(tmp_path):
    path, out = files.write(tmp_path, files.AZURE), tmp_path / "out"
    with pytest.raises(WorkloadError, match="azure has no block ids"):
        convert(path, out)
    path = files.write(tmp_path, files.TEXTS["ragpulse"])
    with pytest.raises(WorkloadError, match="say --page-tokens"):
        convert(path, out)
    path = files.write(tmp_path, files.TEXTS["mooncake"] + "oops\n")
    with pytest.raises(WorkloadError, match=":4: no JSON"):
        convert(path, out)
    assert not out.exists()
    assert not list(tmp_path.glob("*.part"))
    said = convert(path, out, skip_bad=True)
    assert (said["requests"], said["skipped"]) == (3, 1)
    with pytest.raises(WorkloadError, match="nothing is overwritten"):
        convert(path, out, skip_bad=True)


def test_equal_traces_give_equal_files(tmp_path):
    path = files.write(tmp_path, files.TEXTS["mooncake"])
    for name in ("a.gz", "b.gz"):
        convert(path, tmp_path / name)
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.gz").read_bytes()).count(b"\n") == 3


@given(st.integers(0, 1 << 62))
def test_milliseconds_are_exact(time_ns):
    whole, _, rest = milliseconds(time_ns).partition(".")
    assert int(whole) * 10**6 + int(rest.ljust(6, "0") or 0) == time_ns

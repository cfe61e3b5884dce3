"""The planted bugs of pages taken ahead, clones, images of tables, spans and receipts."""

from __future__ import annotations

from mutants.catalogue_tensors import CACHE, SWAP
from mutants.mutant import Mutant

LIVES = "tests/unit/test_lives.py::"
SPANS = "tests/unit/test_spans.py::"

LIFE = [
    # Lives and images
    Mutant(
        "a page taken ahead that leaks",
        "paging/lifecycle.py",
        "while tables[table, f.RESERVED] > 0:",
        "while tables[table, f.RESERVED] > 99:",
        LIVES + "test_a_sequence_that_ends_gives_back_what_it_took_ahead",
    ),
    Mutant(
        "a page taken ahead that a fork shares",
        "paging/lifecycle.py",
        "(f.CURSOR, f.DEAD, f.ENTRIES, f.NAMED, f.ROOT, f.HOLE, f.OLDEST)",
        "(f.CURSOR, f.DEAD, f.ENTRIES, f.NAMED, f.ROOT, f.HOLE, f.OLDEST, f.RESERVED, f.RESERVE)",
        LIVES + "test_pages_taken_ahead_stay_the_parents_own",
    ),
    Mutant(
        "a clone without the pages taken ahead",
        "paging/lifecycle.py",
        "count = tables[parent * units + scope, f.RESERVED]",
        "count = 0 * tables[parent * units + scope, f.RESERVED]",
        LIVES + "test_a_clone_has_every_page_for_itself",
    ),
    Mutant(
        "a clone whose pages ahead are not asked for",
        "paging/lifecycle.py",
        "answer = refuse_or_grow(scalars, entries, plan, named + ahead, segments, moves)",
        "answer = refuse_or_grow(scalars, entries, plan, named, segments, moves)",
        LIVES + "test_a_clone_is_made_or_refused_as_a_whole[9]",
    ),
    Mutant(
        "a clone that shares its pages",
        "paging/lifecycle.py",
        "    own_every_page(arrays, child)\n",
        "",
        LIVES + "test_a_clone_has_every_page_for_itself",
    ),
    Mutant(
        "room in the last page that a reservation forgets",
        "paging/lifecycle.py",
        "more = wanted - tables[table, f.ENTRIES] - tables[table, f.RESERVED]",
        "more = wanted - tables[table, f.CURSOR] // page_tokens - tables[table, f.RESERVED]",
        LIVES + "test_reserve_takes_what_the_next_tokens_need[2-0]",
    ),
    Mutant(
        "an append that leaves its own pages lying",
        "paging/pool.py",
        "if tables[table, f.RESERVED] == 0:",
        "if tables[table, f.RESERVED] >= 0:",
        LIVES + "test_an_append_uses_the_pages_taken_ahead_in_their_order",
    ),
    Mutant(
        "pages taken ahead that lose those taken before",
        "paging/pool.py",
        "        if last < 0:\n            tables[table, f.RESERVE] = page\n",
        "        if last < 0 or count > 1:\n            tables[table, f.RESERVE] = page\n",
        LIVES + "test_reserve_takes_what_the_next_tokens_need[7-2]",
    ),
    Mutant(
        "a restored table without its holes",
        "paging/images.py",
        "dead[place] = dead_in[at + slot]",
        "dead[place] = 0",
        LIVES + "test_an_image_brings_back_all_that_a_table_says[tail-one set]",
    ),
    Mutant(
        "a restored set that retains what it dropped",
        "paging/images.py",
        "holders[row, place] = holders_in[row, at + slot]",
        "holders[row, place] = 1 - dead_in[at + slot]",
        SWAP + "test_sets_and_tables_of_their_own_come_back",
    ),
    Mutant(
        "restored positions that are slots",
        "paging/images.py",
        "position[row, place] = position_in[row, at + slot]",
        "position[row, place] = slot",
        SWAP + "test_a_sequence_comes_back_with_its_holes_and_positions[holes-kv_raw]",
    ),
    Mutant(
        "a restored sequence that takes no page ahead",
        "paging/images.py",
        "take_ahead(scalars, tables, pages, scopes, table, reserved[scope])",
        "take_ahead(scalars, tables, pages, scopes, table, 0)",
        SWAP + "test_under_a_ceiling_that_just_fits_and_just_does_not[1]",
    ),
    Mutant(
        "a restore that asks for too few pages",
        "paging/images.py",
        "need += reserved[scope]",
        "need += 0",
        LIVES + "test_restore_under_a_ceiling_that_just_fits_and_just_does_not",
    ),
    Mutant(
        "an image whose positions nobody compares",
        "paging/images.py",
        "or (found[1:] == found[:-1]).any()",
        "or (found[1:] < found[:-1]).any()",
        LIVES + "test_images_of_no_ledger_are_refused[a position twice]",
    ),
    # Spans and receipts
    Mutant(
        "an eviction that is not undone",
        "paging/spans.py",
        "            ledger.put_back(saved)\n",
        "            pass\n",
        SPANS + "test_an_eviction_whose_compaction_is_refused_is_undone[rebuild]",
    ),
    Mutant(
        "a peak that a refused verb resets",
        "paging/spans.py",
        "        ledger.swap_peak(peak)\n        raise\n",
        "        raise\n",
        SPANS + "test_a_refused_eviction_leaves_the_peak_alone",
    ),
    Mutant(
        "the highest peak in every receipt",
        "paging/spans.py",
        "extra_pages_peak=inside,",
        "extra_pages_peak=max(peak, inside),",
        SPANS + "test_the_peak_of_a_receipt_is_its_own",
    ),
    Mutant(
        "totals in a receipt",
        "paging/spans.py",
        "ledger.total(field) - before[name] for name",
        "ledger.total(field) - 0 * before[name] for name",
        SPANS + "test_flows_of_earlier_verbs_are_not_in_a_receipt",
    ),
    Mutant(
        "a peak that forgets what the eviction freed",
        "paging/spans.py",
        "inside = max(inside, between + ledger.swap_peak(0))",
        "inside = max(inside, ledger.swap_peak(0))",
        CACHE + "test_block_counts_of_fak[1024-16-512-rebuild-alone]",
    ),
    Mutant(
        "a first below 0 that is moved to 0",
        "paging/spans.py",
        "    first, count = int(first), int(count)\n",
        "    first, count = max(0, int(first)), int(count)\n",
        SPANS + "test_clamping_follows_fak[(-1, 9)-(-1, -1)]",
    ),
    Mutant(
        "an end that is not clamped",
        "paging/spans.py",
        "return first, min(first + count, length)",
        "return first, first + count",
        CACHE + "test_the_end_of_a_span_is_clamped[3]",
    ),
    Mutant(
        "flags taken for numbers",
        "paging/spans.py",
        "if isinstance(value, bool) or not isinstance(value, int | np.integer):",
        "if not isinstance(value, int | np.integer):",
        SPANS + "test_what_is_no_int64_is_refused_on_either_side[True]",
    ),
    Mutant(
        "a span of slots",
        "paging/spans.py",
        "below, above = np.searchsorted(positions, (first, last))",
        "below, above = np.searchsorted(np.sort(slots), (first, last))",
        SPANS + "test_a_span_is_of_positions_and_not_of_slots",
    ),
    Mutant(
        "a span that ends with the first table",
        "paging/spans.py",
        "return max(ledger.next_position(sequence, scope) for scope in range(units))",
        "return min(ledger.next_position(sequence, scope) for scope in range(units))",
        SPANS + "test_tables_of_unequal_lengths_share_the_longest_one_s_end",
    ),
]

"""The planted bugs of steps, of the eviction loop and of the engine."""

from __future__ import annotations

from mutants.catalogue import KILLS
from mutants.mutant import Mutant

CEILING = "tests/engine/test_ceiling.py::"
LOOP_TESTS = "tests/eviction/test_loop.py::"
PAGED = "tests/eviction/test_paged_eviction.py::"
RUNNING = "tests/engine/test_running.py::"
WHEN = "tests/engine/test_when.py::"

LOOP = [
    Mutant(
        "a kernel that evicts the sinks",
        "paging/steps.py",
        "slot = max(tables[table, f.OLDEST], sinks)",
        "slot = max(tables[table, f.OLDEST], 0)",
        KILLS + "test_the_kernel_evicts_the_oldest_but_the_sinks",
    ),
    Mutant(
        "a kernel that evicts what is too recent",
        "paging/steps.py",
        "last = tables[table, f.CURSOR] - recent",
        "last = tables[table, f.CURSOR]",
        KILLS + "test_the_kernel_leaves_to_python_what_protection_forbids",
    ),
    Mutant(
        "a kernel's fraction of the tokens before this step",
        "paging/steps.py",
        "kept = tokens if tokens else np.int64(fraction * total)",
        "kept = tokens if tokens else np.int64(fraction * (total - 1))",
        KILLS + "test_the_kernel_keeps_a_fraction_of_all_tokens_so_far",
    ),
    Mutant(
        "a fraction that is rounded up",
        "eviction/state.py",
        "return Target(kept=int(self.fraction * appended)",
        "return Target(kept=-int(-self.fraction * appended // 1)",
        WHEN + "test_per_step_a_fraction_is_of_the_tokens_so_far[random-0.3]",
    ),
    Mutant(
        "victims remembered as what is kept",
        "eviction/loop.py",
        "state.tokens = [kept[~out] for kept, out in zip(state.tokens, gone, strict=True)]",
        "state.tokens = [kept[out] for kept, out in zip(state.tokens, gone, strict=True)]",
        LOOP_TESTS + "test_one_eviction_by_hand",
    ),
    Mutant(
        "ages counted from the tokens that are left",
        "eviction/loop.py",
        "ages=state.appended - tokens,",
        "ages=tokens.size - np.arange(tokens.size),",
        LOOP_TESTS + "test_the_newest_tokens_are_those_appended_last_and_not_those_left",
    ),
    Mutant(
        "a refused append that nobody counts",
        "eviction/loop.py",
        "            self.refused_verbs_total += 1\n            if not",
        "            if not",
        CEILING + "test_a_refused_append_evicts_and_is_tried_again",
    ),
    Mutant(
        "a refused compaction that nobody counts",
        "eviction/loop.py",
        "                self.refused_verbs_total += 1\n        self._tell",
        "                self.refused_verbs_total += 0\n        self._tell",
        CEILING + "test_a_refused_compaction_is_left_out_and_counted[9-1]",
    ),
    Mutant(
        "a refused eviction that the loop believes in",
        "eviction/loop.py",
        "            self.refused_verbs_total += 1\n            return False",
        "            state.tokens = [t[~o] for t, o in zip(state.tokens, gone, strict=True)]\n"
        "            return False",
        CEILING + "test_a_refused_eviction_is_left_out_and_counted",
    ),
    Mutant(
        "chunks that are one token too long",
        "engine/driver.py",
        "size = self.when.chunk_tokens if chunked",
        "size = self.when.chunk_tokens + 1 if chunked",
        WHEN + "test_per_chunk_a_fraction_is_of_the_tokens_so_far",
    ),
    Mutant(
        "a ledger that is never recounted on the way",
        "engine/driver.py",
        "checked = self.steps",
        "checked = self.steps + (1 << 60)",
        RUNNING + "test_the_ledger_is_recounted_every_so_many_steps[python]",
    ),
    Mutant(
        "a prompt whose victims are paged and whose survivors are not",
        "eviction/loop.py",
        "kept = [np.flatnonzero(~out) for out in victims]",
        "kept = [np.flatnonzero(out) for out in victims]",
        PAGED + "test_the_highest_scores_are_kept_at_their_positions",
    ),
]

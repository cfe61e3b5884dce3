"""Names of the columns of the ledger's arrays, and what a kernel may answer.

Plain integers at module level, because the compiled kernels read them as constants.
"""

from __future__ import annotations

# scalars, int64: one number for the whole ledger.
PAGE_TOKENS = 0  # slots in a page
CEILING = 1  # most pages that may be held at once
PAGES = 2  # pages that the pool's arrays have; also the index of the queue's sentinel
HELD = 3  # pages with a refcount above 0
HELD_PEAK = 4  # most pages held at the end of a step
ORDER = 5  # where a freed page enters the queue: FIFO or LIFO
UNITS = 6  # scope units, hence tables, of a sequence
SETS = 7  # sets inside a scope unit
ARENA_TOP = 8  # entries of the arena that were ever given to a table
SEQUENCE_TOP = 9  # sequence numbers that were ever in use
SEQUENCE_FREE = 10  # first freed sequence number, or -1
NEED = 11  # what a refused verb asked for; the face reads it and sets it back to 0
GROW_WHAT = 12  # which array a GROW answer speaks of; set back like NEED
PLAN = 13  # moves in the plan that no store has carried out yet
APPENDED_TOTAL = 14  # slots appended, summed over tables
EVICTED_ROWS_TOTAL = 15  # (token, layer, head) rows that a set dropped
EVICTED_BYTES_TOTAL = 16  # their bytes
FREED_TOTAL = 17  # pages whose refcount reached 0 inside a verb other than free
FINISHED_TOTAL = 18  # pages whose refcount reached 0 because a sequence finished
ALLOCATED_TOTAL = 19  # pages taken from the queue
COW_TOTAL = 20  # pages copied because a writer shared them
COPIED_ROWS_TOTAL = 21  # rows moved, copy-on-write included
COPIED_BYTES_TOTAL = 22
ROTATED_ROWS_TOTAL = 23  # rows whose key was re-rotated
EXTRA_PEAK = 24  # most pages held inside an evict or compact beyond those held before it
STEP = 25  # how far `advance` came: steps done,
MEMBER = 26  # and members of the batch done in the step under way
REUSE = 27  # 1 if a new token may take a dead slot
RENUMBER = 28  # 1 if evict renumbers; a compaction that renumbers leaves it at 0
RENUMBER_WRITES = 29  # 1 if a changed position rewrites a stored key, hence copies on write
FAMILIES = 30  # families of forks so far; a number used again begins a new one
CACHED = 31  # pages that nobody holds and whose key is still known
PARKED = 32  # pages that are out of the pool: the ceiling was lowered below them
REVIVED_TOTAL = 33  # cached pages that were taken up again by a prefix hit
RECLAIMED_TOTAL = 34  # cached pages that lost their key because their memory was needed
CLASS = 35  # 32 heads of the arena's free lists: segments of 2**k entries
SCALARS = CLASS + 32

# tables, int64 [table, field]; table = sequence * units + scope unit.
SEQUENCE = 0  # the sequence, or -1 when the row is not in use
SCOPE = 1  # the scope unit
START = 2  # first entry of the table's segment of the arena
CAPACITY = 3  # entries of that segment, a power of two or 0
CURSOR = 4  # appended slots: the next slot to write
DEAD = 5  # dead slots below the cursor
ENTRIES = 6  # entries in use: ceil(cursor / page_tokens)
ROOM = 7  # slots that may be appended without a look at any page: 0 is always right
HOLE = 8  # no entry below this one has a dead slot in a page
ROOT = 9  # the family: all that descend by forks from one opened sequence share it
NEXT_FREE = 10  # next freed sequence number, when the row is not in use
NAMED = 11  # entries that name a page
OLDEST = 12  # no slot below this one is live, but for protected sinks: 0 is always right
RESERVED = 13  # pages taken ahead for this table, named by no entry yet,
RESERVE = 14  # and the first of them; they are chained by NEXT, which a held page does not use
NEXT_POSITION = 15  # the position that the next token gets; a column per row of `position`
TABLE_FIELDS = 15  # and one NEXT_POSITION for each row of `position`

# pages, int32 [field, page]; the last column is the queue's sentinel.
REFCOUNT = 0
PREVIOUS = 1
NEXT = 2
STATE = 3
OWNER = 4  # the scope unit that the page serves, while it is held
KEY = 5  # 1 + the key of the content that a prefix index may serve from it, or 0
PAGE_FIELDS = 6

FREE_PAGE = 0
HELD_PAGE = 1
CACHED_PAGE = 2
PARKED_PAGE = 3

FIFO = 0
LIFO = 1

# entries, int32 [field, arena].
PAGE = 0  # the page, or -1: a null entry; -2: its rows are in host memory
DEAD_IN = 1  # dead slots of this entry that lie below the cursor

# scopes, int64 [scope unit, field]: held pages, then four columns a set.
HELD_IN = 0
SET_COLUMNS = 1
LIST = 0  # which of an eviction's victim lists this set follows
ROWS = 1  # (layer, head) units in the set
BYTES = 2  # bytes of one token's rows in the set
TURNS = 3  # units of the set whose stored key depends on its position
PER_SET = 4

# plan, int64 [field, move].
SOURCE = 0  # physical slot: page * page_tokens + offset
TARGET = 1
POSITION = 2  # the position to rotate the key to, or -1: carry it over as it is
SCOPE_OF = 3  # whose rows: the scope unit,
SET_OF = 4  # and the set inside it, or -1 for all of its sets
PLAN_FIELDS = 5

# What a kernel answers.
OK = 0
CEILING_HIT = 1
GROW = 2
BAD_VICTIM = 3
POLICY_DUE = 4

# Which array a GROW answer speaks of.
GROW_PAGES = 0
GROW_ARENA = 1
GROW_TABLES = 2
GROW_PLAN = 3

# Compaction algorithms.
REBUILD = 0
FORWARD = 1
HOLE_FILL = 2

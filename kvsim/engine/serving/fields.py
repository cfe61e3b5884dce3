"""Names of the columns of the serving engine's arrays, and what its kernel may answer."""

from __future__ import annotations

# state, int64: one number for the whole engine.
NOW = 0  # nanoseconds
STEP = 1  # steps taken; also the number of the step under way
NEXT_ARRIVAL = 2  # first request that has not joined the queue
RUNNING = 3  # members: requests that prefill or decode
DECODING = 4
PREFILLING = 5
WAITING = 6
WAIT_HEAD = 7  # first of the waiting queue, or -1
WAIT_TAIL = 8
READS = 9  # slots that all decoding members read in the next step, before they write in it
STAMP = 10  # the next place in the running order
CEILING = 11  # the ceiling that is wanted; the pool's own follows it as pages are let go of
WATERMARK = 12  # pages that an admission leaves free
STEP_TOKENS = 13
MAX_RUNNING = 14
CHUNKED = 15
ADMISSION = 16
PREEMPTION = 17
PRESSURE = 18
PUBLISH = 19
EVICTION = 20
WHEN = 21
RUN_TOKENS = 22  # granularity: tokens of a run of victims, 1 for single tokens
KEPT = 23  # tokens that a budget keeps, or 0: then it is a fraction
SINKS = 24
RECENT = 25
SEED = 26
PREFIX = 27  # the kind of prefix cache
GIVEN_KEYS = 28  # keys below it belong to content that requests may share
PUBLISHED = 29  # publications under a shared key: only they can give a waiting request more hits
PREEMPTED = 30  # whether a member was preempted in this step
PHASE = 31  # where in a step to go on after GROW or POLICY_DUE
BUDGET = 32  # tokens that the step under way may still compute
CHUNK_TOKENS = 33  # computed by prefill in the step under way,
CHUNK_READS = 34  # slots that it read,
CHUNK_PAIRS = 35  # and (query, key) pairs
HOST_PAGES = 36  # pages swapped in the step under way
MOVED_BEFORE = 37  # COPIED_BYTES_TOTAL when the last step's time was worked out
BLOCKED = 38  # the head of the queue that found no room,
BLOCKED_ROOM = 39  # the pages that it found,
BLOCKED_BUDGET = 40  # the budget,
BLOCKED_PUBLISHED = 41  # and the publications
FORK_ENTRIES = 42  # arena entries that forks to come will need
LAST_PROGRESS = 43  # last step in which something was computed or generated for the first time
DUE = 44  # requests in `due`
ARRIVED = 45  # requests of the trace; forks of samples stand behind them
PRESSED = 46  # whether the step under way has evicted under pressure
GENERATED_TOTAL = 47
PREFILLED_TOTAL = 48
HIT_TOKENS_TOTAL = 49
PREEMPTIONS_TOTAL = 50
SWAPPED_PAGES_TOTAL = 51  # out and in
FINISHED = 52
CANCELLED = 53
PAGE_INTEGRAL = 54  # held pages at the end of each step, summed
TOKEN_STEPS = 55  # members at each step, summed
READS_TOTAL = 56  # slots read by decoding members
BUSY_NS = 57  # time in steps, without idling
EVICTED_TOTAL = 58  # tokens evicted
MOST_RUNNING = 59  # running members at once, peak
FORK_SEATS = 60  # seats that forks of samples to come will take
LATE_READS = 61  # slots of members that decode from the next step on
WROTE = 62  # decoding members that write a row in the step under way
PLANES = 63  # planes of a row: one of them is what a rotation reads, and one what it writes
TURNED_BEFORE = 64  # ROTATED_ROWS_TOTAL at that time
PRESS_WANTED = 65  # whether the next step begins with an eviction under pressure
TOUCH_ALL = 66  # whether every member is looked at in every step
BLOCKED_KNOWN = 67  # the tokens that it had to compute at most,
BLOCKED_RECLAIMED = 68  # and RECLAIMED_TOTAL
CUTS_TOTAL = 69  # nodes of the radix tree that were cut in two,
EVICTED_LEAVES_TOTAL = 70  # and leaves that were evicted
STATE_SIZE = 71

# requests, int64 [request, field].
ARRIVAL_NS = 0
INPUT = 1
OUTPUT = 2
PRIORITY = 3
SAMPLES = 4
KEYS = 5  # where its given keys begin
KEY_COUNT = 6  # how many they are
OWN_KEY = 7  # the key of page i behind them is this plus i
STATUS = 8
SEQUENCE = 9
COMPUTED = 10  # rows that stand in the cache, while it prefills
GENERATED = 11  # tokens generated before step SINCE
SINCE = 12  # the first step that its table does not know of
TOUCH = 13  # the step at which its table has to be looked at
NEXT = 14  # in the waiting queue
PREVIOUS = 15
RANK = 16  # its place in the running order
SCHEDULED_NS = 17
FIRST_NS = 18
LAST_NS = 19
PREEMPTIONS = 20
HIT_TOKENS = 21
SPARSE = 22  # whether it was evicted from since it was admitted: it publishes nothing more
DONE_PAGES = 23  # pages that were published or passed over
PARENT = 24  # the request that it was forked from, or -1
BEST = 25  # most rows that it ever had computed
EVICTED = 26  # tokens evicted from it
FIRST_CHILD = 27  # its forks of samples: rows FIRST_CHILD to FIRST_CHILD + SAMPLES - 2
NUMBER = 28  # its request in the trace: forks have that of their parent
CHUNK = 29  # tokens that it computed in step CHUNK_STEP
CHUNK_STEP = 30
HOST_PAGES_OF = 31  # its pages in host memory, while SWAPPED
HEAPED = 32  # slots of it in its heap of candidates,
HEAP_NEXT = 33  # and the first one that was never put in
PROMPT_KEY = 34  # as OWN_KEY, for the first PROMPT_PAGES pages: forks share them
PROMPT_PAGES = 35
REQUEST_FIELDS = 36

# STATUS
TO_COME = 0
QUEUED = 1
PREFILLS = 2
DECODES = 3
FINISHED_STATUS = 4
CANCELLED_STATUS = 5
SWAPPED = 6  # in the queue, with its rows in host memory

# What the kernel answers.
UNTIL = 0  # the time or the number of steps is reached
DONE = 1  # nobody runs, waits or is to come
STUCK = 2  # nobody runs and the head of the queue is not admitted
GROW = 3
POLICY_DUE = 4  # `due` holds sequences that Python evicts from
LIVELOCK = 5

# PHASE
AT_START = 0
AT_ADMISSION = 1
AT_EVICTED = 2

# Choices.
FCFS, BY_PRIORITY = 0, 1
RECOMPUTE, SWAP = 0, 1
NO_CACHE, BLOCKS, RADIX = 0, 1, 2
PROMPT, ALL = 0, 1
NO_EVICTION, OLDEST, RANDOM, ASK = 0, 1, 2, 3
PREFILL_END, EVERY_STEP, UNDER_PRESSURE = 0, 1, 2

PATIENCE_STEPS = 10_000  # steps without progress before a run is called infeasible

"""The waiting queue: a linked list in order of arrival, or a heap in order of priority."""

from __future__ import annotations

import numpy as np

from kvsim.engine.serving import fields as s
from kvsim.jit import kernel


@kernel
def before(requests, one, other):
    """Tell whether a request is served before another under admission by priority."""
    for field in (s.PRIORITY, s.ARRIVAL_NS, s.NUMBER):
        if requests[one, field] != requests[other, field]:
            return requests[one, field] < requests[other, field]
    return one < other


@kernel
def push(requests, heap, size, request):
    """Put a request into a heap of `size` requests."""
    at = size
    heap[at] = request
    while at > 0:
        above = (at - 1) // 2
        if not before(requests, heap[at], heap[above]):
            break
        heap[at], heap[above] = heap[above], heap[at]
        at = above


@kernel
def remove(requests, heap, size, at):
    """Take the request at a place out of a heap of `size` requests."""
    last = heap[size - 1]
    size -= 1
    if at == size:
        return
    heap[at] = last
    while at > 0 and before(requests, heap[at], heap[(at - 1) // 2]):
        above = (at - 1) // 2
        heap[at], heap[above] = heap[above], heap[at]
        at = above
    while True:
        least = 2 * at + 1
        if least >= size:
            break
        if least + 1 < size and before(requests, heap[least + 1], heap[least]):
            least += 1
        if not before(requests, heap[least], heap[at]):
            break
        heap[at], heap[least] = heap[least], heap[at]
        at = least


@kernel
def join(serving, request, at_front):
    """Let a request wait: at an end of the list, or at its place by priority."""
    state, requests, heap = serving.state, serving.requests, serving.heap
    if state[s.ADMISSION] == s.BY_PRIORITY:
        push(requests, heap, state[s.WAITING], request)
        state[s.WAITING] += 1
    elif at_front:
        requests[request, s.PREVIOUS] = -1
        requests[request, s.NEXT] = state[s.WAIT_HEAD]
        if state[s.WAIT_HEAD] >= 0:
            requests[state[s.WAIT_HEAD], s.PREVIOUS] = request
        else:
            state[s.WAIT_TAIL] = request
        state[s.WAIT_HEAD] = request
        state[s.WAITING] += 1
    else:
        push_back(state, requests, request)


@kernel
def first(serving):
    """Return the request that is admitted next, or -1."""
    state = serving.state
    if state[s.WAITING] == 0:
        return np.int64(-1)
    if state[s.ADMISSION] == s.BY_PRIORITY:
        return serving.heap[0]
    return state[s.WAIT_HEAD]


@kernel
def pop_front(state, requests):
    """Take the first request out of the list."""
    behind = requests[state[s.WAIT_HEAD], s.NEXT]
    state[s.WAIT_HEAD] = behind
    if behind >= 0:
        requests[behind, s.PREVIOUS] = -1
    else:
        state[s.WAIT_TAIL] = -1
    state[s.WAITING] -= 1


@kernel
def push_back(state, requests, request):
    """Put a request at the end of the list."""
    requests[request, s.NEXT] = -1
    requests[request, s.PREVIOUS] = state[s.WAIT_TAIL]
    if state[s.WAIT_TAIL] >= 0:
        requests[state[s.WAIT_TAIL], s.NEXT] = request
    else:
        state[s.WAIT_HEAD] = request
    state[s.WAIT_TAIL] = request
    state[s.WAITING] += 1


@kernel
def leave(serving, request):
    """Take a request out of the queue, wherever it stands."""
    state, requests, heap = serving.state, serving.requests, serving.heap
    if state[s.ADMISSION] == s.BY_PRIORITY:
        at = 0
        while heap[at] != request:
            at += 1
        remove(requests, heap, state[s.WAITING], at)
    else:
        ahead, behind = requests[request, s.PREVIOUS], requests[request, s.NEXT]
        if ahead >= 0:
            requests[ahead, s.NEXT] = behind
        else:
            state[s.WAIT_HEAD] = behind
        if behind >= 0:
            requests[behind, s.PREVIOUS] = ahead
        else:
            state[s.WAIT_TAIL] = ahead
    state[s.WAITING] -= 1


@kernel
def arrive(state, requests, heap):
    """Let all requests that have arrived by now join the queue."""
    number = state[s.NEXT_ARRIVAL]
    while number < state[s.ARRIVED] and requests[number, s.ARRIVAL_NS] <= state[s.NOW]:
        if requests[number, s.STATUS] == s.TO_COME:
            requests[number, s.STATUS] = s.QUEUED
            if state[s.ADMISSION] == s.BY_PRIORITY:
                push(requests, heap, state[s.WAITING], number)
                state[s.WAITING] += 1
            else:
                push_back(state, requests, number)
        number += 1
    state[s.NEXT_ARRIVAL] = number

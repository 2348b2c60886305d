"""The pool of blocks on its own, and the queues."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmlab.sched import BlockManager, Request, SamplingParams
from llmlab.sched.blocks import block_key
from llmlab.sched.queues import FcfsQueue, PriorityQueue
from tests.sched.lab import make


def computed(manager: BlockManager, name: str, tokens: list[int]):
    """A request with all its tokens computed and registered."""
    request = make(name, tokens, 1)
    hits = manager.lookup(request)
    assert manager.allocate(request, len(tokens), hits)
    request.num_computed_tokens = len(tokens)
    manager.register(request, len(tokens) - len(hits) * manager.block_size)
    return request


def test_blocks_are_freed_tail_first_so_that_tails_are_taken_first() -> None:
    manager = BlockManager(4, 2, enable_prefix_caching=True)
    a = computed(manager, "A", list(range(8)))
    assert a.block_ids == [0, 1, 2, 3]
    manager.free(a)
    manager.allocate(b := make("B", 3, 1), 3)
    assert b.block_ids == [3, 2]


def test_what_nobody_can_find_is_taken_before_what_can_be_found() -> None:
    manager = BlockManager(6, 2, enable_prefix_caching=True)
    a = computed(manager, "A", list(range(5)))
    assert a.block_ids == [0, 1, 2]  # the last one is half full, so it has no key
    manager.free(a)
    manager.allocate(b := make("B", 8, 1), 8)
    assert b.block_ids == [2, 3, 4, 5]
    assert manager.lookup(make("C", list(range(5)), 1)) == [0, 1]


@pytest.mark.parametrize("rounds", [1, 20])
def test_a_pool_that_is_never_full_touches_no_more_than_it_needed_at_once(rounds: int) -> None:
    manager, touched = BlockManager(100, 2), set()
    for _ in range(rounds):
        both = [make(name, 10, 1) for name in "AB"]
        for request in both:
            manager.allocate(request, 10)
            touched |= set(request.block_ids)
        for request in both:
            manager.free(request)
    assert len(touched) == 10


def test_a_shared_block_is_free_only_when_its_last_owner_is_gone() -> None:
    manager = BlockManager(6, 2, enable_prefix_caching=True)
    a = computed(manager, "A", [1, 2, 3, 4, 5])
    b = computed(manager, "B", [1, 2, 3, 4, 6])
    assert a.block_ids[:2] == b.block_ids[:2]
    assert manager.num_used == 4
    manager.check_integrity([a.block_ids, b.block_ids])
    manager.free(a)
    assert manager.num_used == 3
    manager.free(b)
    assert manager.num_used == 0
    manager.check_integrity([])


def test_freeing_twice_frees_once() -> None:
    manager = BlockManager(4, 2)
    manager.allocate(a := make("A", 4, 1), 4)
    manager.free(a)
    manager.free(a)
    assert manager.num_free == 4
    manager.check_integrity([])


def test_a_hit_needs_everything_before_it_to_be_equal() -> None:
    manager = BlockManager(8, 2, enable_prefix_caching=True)
    computed(manager, "A", [1, 2, 3, 4, 5])
    assert len(manager.lookup(make("same", [1, 2, 3, 4, 5], 1))) == 2
    assert len(manager.lookup(make("other end", [1, 2, 3, 9, 5], 1))) == 1
    assert len(manager.lookup(make("other start", [9, 2, 3, 4, 5], 1))) == 0
    assert len(manager.lookup(make("shifted", [3, 4, 5], 1))) == 0


def test_a_partial_block_is_not_found() -> None:
    manager = BlockManager(8, 4, enable_prefix_caching=True)
    computed(manager, "A", [1, 2, 3])
    assert manager.num_cached == 0
    assert manager.lookup(make("B", [1, 2, 3, 4, 5], 1)) == []


def test_the_last_token_is_never_a_hit() -> None:
    manager = BlockManager(8, 2, enable_prefix_caching=True)
    computed(manager, "A", [1, 2, 3, 4])
    assert len(manager.lookup(make("B", [1, 2, 3, 4], 1))) == 1
    assert len(manager.lookup(make("C", [1, 2, 3, 4, 5], 1))) == 2


def test_the_least_recently_used_block_is_evicted_first_and_hits_count_as_use() -> None:
    manager = BlockManager(4, 2, enable_prefix_caching=True)
    for name, tokens in (("A", [1, 2, 3]), ("B", [4, 5, 6])):
        manager.free(computed(manager, name, tokens))
    manager.free(computed(manager, "A again", [1, 2, 3]))
    manager.allocate(make("C", 4, 1), 4)
    assert len(manager.lookup(make("A", [1, 2, 3], 1))) == 1
    manager.allocate(make("D", 1, 1), 2)
    assert manager.lookup(make("B", [4, 5, 6], 1)) == []


def test_of_two_equal_blocks_either_may_be_evicted_without_harm_to_the_other() -> None:
    manager = BlockManager(4, 2, enable_prefix_caching=True)
    a, b = make("A", [1, 2, 3], 1), make("B", [1, 2, 3], 1)
    for request in (a, b):  # both miss: nothing is registered yet
        manager.allocate(request, 3, manager.lookup(request))
    for request in (a, b):
        request.num_computed_tokens = 3
        manager.register(request, 3)
    assert manager.num_cached == 1
    manager.free(b)
    manager.allocate(c := make("C", 4, 1), 4)
    manager.check_integrity([a.block_ids, c.block_ids])
    assert manager.lookup(make("D", [1, 2, 3], 1)) == a.block_ids[:1]


def test_without_the_cache_nothing_is_ever_found() -> None:
    manager = BlockManager(4, 2)
    computed(manager, "A", [1, 2, 3])
    assert manager.lookup(make("A", [1, 2, 3], 1)) == []


def test_the_watermark_is_left_over() -> None:
    manager = BlockManager(4, 2)
    assert not manager.allocate(make("A", 6, 1), 6, keep_free=2)
    assert manager.allocate(make("A", 4, 1), 4, keep_free=2)


def test_keys_depend_on_content_order_and_parent() -> None:
    keys = [block_key(b"", [1, 2]), block_key(b"", [2, 1]), block_key(b"", [12])]
    keys += [block_key(keys[0], [1, 2]), block_key(keys[1], [1, 2])]
    assert len(set(keys)) == len(keys)
    assert block_key(b"", [1, 2]) == keys[0]


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda m, a: a.block_ids.append(a.block_ids[0]), "twice in one table"),
        (lambda m, a: m._refs.__setitem__(a.block_ids[0], 2), "ref count 2, in 1 tables"),
        (lambda m, a: m._free.__setitem__(a.block_ids[0], None), "do not agree"),
        (lambda m, a: m._free.popitem(), "do not agree"),
        (lambda m, a: m._block_of.clear(), "two maps"),
    ],
)
def test_integrity_notices(break_it, words: str) -> None:
    manager = BlockManager(6, 2, enable_prefix_caching=True)
    a = computed(manager, "A", [1, 2, 3])
    manager.check_integrity([a.block_ids])
    break_it(manager, a)
    with pytest.raises(RuntimeError, match=words):
        manager.check_integrity([a.block_ids])


def test_a_pool_of_nothing_is_refused() -> None:
    for blocks, size in ((0, 4), (4, 0), (-1, 4), (1.5, 4), (True, 4)):
        with pytest.raises(ValueError, match=r"BlockManager\.(num_blocks|block_size)"):
            BlockManager(blocks, size)  # type: ignore[arg-type]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.data())
def test_the_priority_queue_is_a_sorted_list(urgencies: list[int], data) -> None:
    queue, members = PriorityQueue(), []
    for arrival, urgency in enumerate(urgencies):
        request = make(f"r{arrival}", 1, 1, priority=urgency)
        request.arrival = arrival
        queue.push(request)
        members.append(request)
        if data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(members))
            queue.remove(gone)
            members.remove(gone)
        members.sort(key=lambda r: (r.priority, r.arrival))
        assert list(queue) == members
        assert len(queue) == len(members)
        assert not members or queue.head is members[0]


def test_the_priority_queue_forgets_what_was_removed() -> None:
    queue = PriorityQueue()
    requests = [make(f"r{i}", 1, 1) for i in range(1000)]
    for arrival, request in enumerate(requests):
        request.arrival = arrival
        queue.push(request)
    for request in reversed(requests[1:]):
        queue.remove(request)
    assert len(queue) == 1
    assert len(queue._heap) < 50
    assert queue.head is requests[0]


@pytest.mark.parametrize("kind", [FcfsQueue, PriorityQueue])
def test_an_empty_queue_has_no_head(kind: type) -> None:
    queue = kind()
    with pytest.raises(KeyError, match="nobody waits"):
        queue.head
    queue.push(request := make("A", 1, 1))
    queue.remove(request)
    with pytest.raises(KeyError, match="nobody waits"):
        queue.head


@pytest.mark.parametrize("kind", [FcfsQueue, PriorityQueue])
def test_taking_requests_out_of_a_long_queue_takes_no_longer(kind: type) -> None:
    """From the front, the middle and the end; a linear search would need minutes."""
    queue, params = kind(), SamplingParams()
    requests = [Request(f"r{i}", [1], params) for i in range(40_000)]
    for arrival, request in enumerate(requests):
        request.arrival = arrival
        queue.push(request)
    start = time.perf_counter()
    for i in range(13_000):
        queue.remove(queue.head)
        queue.remove(requests[-1 - i])
    for request in list(queue)[5000:6000]:
        queue.remove(request)
    assert len(queue) == 13_000
    assert time.perf_counter() - start < 20

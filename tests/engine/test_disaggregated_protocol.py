"""Keys and values move between two pools: order, holds, faults. No torch, no process."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.engine.pair_lab import LAYERS, TIMEOUT, pair, prompt


def kinds(messages):
    return [message["kind"] for message in messages]


def half_way(**sizes):
    """A pair whose first request is computed and on its way: everything is in `to_decode`."""
    lab = pair(**sizes)
    lab.add(prompt(10))
    lab.decode_step()
    lab.to_prefill_deliver()
    while lab.prefill.has_work:
        lab.prefill_step()
    return lab


def test_the_order_of_a_transfer():
    lab = pair()
    request = lab.add(prompt(10))
    lab.decode_step()
    assert lab.decode.blocks.num_used == 3  # blocks first
    assert kinds(lab.to_prefill) == ["ask"]
    lab.to_prefill_deliver()
    lab.prefill_step()  # T = 8 of 10 tokens
    assert kinds(lab.to_decode) == ["layer"] * LAYERS
    lab.prefill_step()
    assert kinds(lab.to_decode) == ["layer"] * 2 * LAYERS + ["done"]
    assert lab.prefill.num_blocks_used == 3  # the request is over there, its blocks are not free
    assert not lab.prefill.has_work
    while lab.to_decode:
        lab.to_decode_deliver()
    assert (request.num_computed_tokens, request.num_missing_tokens) == (9, 1)
    assert lab.prefill.num_blocks_used == 3
    lab.to_prefill_deliver()
    assert lab.acks == ["r0"]
    assert lab.prefill.num_blocks_used == 0  # freed by the acknowledgement
    lab.run()
    assert lab.moved == {"r0": 10 * LAYERS}
    assert lab.retried == {}


def test_short_prompts_stay_local():
    lab = pair(local_below=6)
    lab.add(prompt(5))
    lab.add(prompt(6))
    lab.run()
    assert set(lab.moved) == {"r1"}


def test_only_what_the_decode_side_has_not_cached_moves_and_counts():
    lab = pair(local_below=6, cache=True)
    lab.add(prompt(12))
    lab.run()
    lab.add(prompt(12) + prompt(9, seed=5))  # 12 tokens are in the cache, 9 are not
    lab.add(prompt(12) + prompt(5, seed=7))  # 5 are not: local
    lab.run()
    assert lab.moved == {"r0": 12 * LAYERS, "r1": 9 * LAYERS}
    assert lab.requests[1].num_cached_tokens == 12


def test_what_the_prefill_side_finds_in_its_cache_moves_too():
    lab = pair(prefill={"enable_prefix_caching": True})
    lab.add(prompt(12))
    lab.run()
    lab.add([*prompt(12), 1, 2, 3])
    lab.run()
    assert lab.moved == {"r0": 12 * LAYERS, "r1": 15 * LAYERS}


def test_a_prompt_preempted_at_the_prefill_side_is_not_sent_twice():
    lab = pair(prefill={"N": 7, "T": 12, "long_prefill_token_threshold": 4})
    for seed in (1, 2, 3):
        lab.add(prompt(16, seed))
    lab.run()
    assert lab.preempted_there > 0
    assert lab.moved == {f"r{i}": 16 * LAYERS for i in range(3)}


def test_a_full_decode_pool_is_back_pressure():
    lab = pair(N=4)
    lab.add(prompt(9), max_tokens=4)
    lab.add(prompt(9, 2), max_tokens=4)
    lab.decode_step()
    assert kinds(lab.to_prefill) == ["ask"]  # 3 of 4 blocks are taken: the second asks for nothing
    assert lab.decode.num_waiting == 1
    lab.run()
    assert lab.arrived == ["r0", "r1"]


def test_nobody_overtakes_a_remote_request_that_finds_no_room():
    lab = pair(N=4, local_below=6)
    lab.add(prompt(9), max_tokens=4)
    lab.add(prompt(9, 2), max_tokens=4)
    lab.add(prompt(2, 3), max_tokens=1)  # would fit, would be local
    lab.decode_step()
    assert lab.decode.num_waiting == 2
    lab.run()


def test_arriving_requests_take_seats():
    lab = pair(S=2)
    for seed in (1, 2, 3):
        lab.add(prompt(5, seed))
    lab.decode_step()
    assert len(lab.decode.arriving) == 2
    lab.run()


@pytest.mark.parametrize("times", [1, 2, 5])
def test_a_repeated_acknowledgement_changes_nothing(times):
    lab = half_way()
    while lab.to_decode:
        lab.to_decode_deliver()
    lab.add(prompt(9, 2))
    for _ in range(times):
        lab.to_prefill_deliver(keep=True)
    lab.run()
    assert lab.arrived == ["r0", "r1"]


def test_a_lost_acknowledgement_frees_after_the_time_out_and_a_late_one_is_harmless():
    lab = half_way()
    while lab.to_decode:
        lab.to_decode_deliver()
    late = lab.to_prefill.pop()
    lab.wait(TIMEOUT)
    assert lab.prefill.num_blocks_used == 3
    lab.wait(1)
    assert lab.prefill.num_blocks_used == 0
    assert lab.sender.unacknowledged == ["r0"]
    lab.to_prefill.append(late)
    lab.run()


def test_a_repeated_done_is_acknowledged_again_and_completes_once():
    lab = half_way()
    while len(lab.to_decode) > 1:
        lab.to_decode_deliver()
    lab.to_decode_deliver(keep=True)
    lab.to_prefill.clear()  # the acknowledgement is lost
    lab.to_decode_deliver()
    lab.to_prefill_deliver()
    assert lab.acks == ["r0"]
    lab.run()
    assert lab.arrived == ["r0"]


@pytest.mark.parametrize("lost", range(2 * LAYERS))
def test_a_lost_layer_is_noticed_and_the_prompt_computed_here(lost):
    lab = half_way()
    del lab.to_decode[lost]
    lab.run()
    assert "never came" in lab.retried["r0"]
    assert lab.arrived == []


@pytest.mark.parametrize("seen", range(2 * LAYERS + 1))
def test_a_link_cut_after_any_message(seen):
    lab = half_way()
    for _ in range(seen):
        lab.to_decode_deliver()
    lab.cut("the wire was cut")
    assert lab.prefill.num_blocks_used == 0
    lab.run()
    assert lab.retried == {"r0": "the wire was cut"}


def test_what_comes_back_keeps_its_place_in_the_queue():
    lab = pair()
    for seed in (1, 2, 3):
        lab.add(prompt(5, seed))
    lab.decode_step()
    lab.add(prompt(5, 4))
    lab.cut()
    assert [request.request_id for request in lab.decode.waiting] == ["r0", "r1", "r2", "r3"]
    lab.run()


def test_silence_ends_in_a_local_retry_and_the_blocks_stay_held_until_the_link_is_given_up():
    lab = pair()
    lab.add(prompt(10))
    lab.decode_step()
    lab.to_prefill.clear()  # the ask is lost, nobody says anything
    lab.wait(TIMEOUT + 1)
    assert "nothing came" in lab.retried["r0"]
    assert lab.decode.blocks.num_holds == 1  # whoever writes late, writes to nobody's blocks
    lab.to_prefill.clear()  # so is the cancel
    lab.wait(TIMEOUT + 1)
    assert not lab.connected
    assert lab.decode.blocks.num_holds == 0
    lab.run()


def test_a_layer_that_comes_after_the_end_is_not_written():
    lab = half_way()
    late = [message for message in lab.to_decode if message["kind"] == "layer"]
    lab.abort("r0")
    assert lab.decode.blocks.num_holds == 1
    lab.to_decode.clear()
    lab.to_prefill_deliver()  # cancel
    lab.to_decode_deliver()  # cancelled
    assert lab.decode.num_blocks_used == 0
    before = [list(model.slots) for model in lab.here.models]
    lab.to_decode += late
    lab.run()
    assert [model.slots for model in lab.here.models] == before


def test_what_comes_after_giving_up_is_not_written():
    lab = half_way()
    lab.wait(TIMEOUT + 1)
    assert "nothing came" in lab.retried["r0"]
    while lab.to_decode:
        lab.to_decode_deliver()
    assert lab.moved == {}
    lab.run()


def test_a_repeated_or_overtaken_ask_computes_nothing():
    lab = half_way()
    again = {"kind": "ask", "name": "r0", "prompt": prompt(10), "first": 0}
    lab.to_prefill.insert(0, again)
    lab.to_prefill_deliver()  # while it is open
    while lab.to_decode:
        lab.to_decode_deliver()
    lab.to_prefill_deliver()
    lab.to_prefill.append(again)
    lab.to_prefill_deliver()  # after its end
    lab.add(prompt(9, 2))
    lab.decode_step()
    lab.abort("r1")
    assert kinds(lab.to_prefill) == ["ask", "cancel"]
    lab.to_prefill_deliver(1)
    lab.to_prefill_deliver()  # after its cancel
    assert not lab.prefill.has_work
    lab.run()


def test_a_prompt_too_long_for_the_prefill_side_is_refused_and_computed_here():
    lab = pair(prefill={"N": 2})
    lab.add(prompt(20))
    lab.run()
    assert "at most 8 tokens" in lab.retried["r0"]


def test_messages_that_make_no_sense_change_nothing():
    lab = half_way()
    for message in ({"kind": "hello"}, {"kind": "ack", "name": "nobody"}, {"kind": "done"}):
        lab.to_prefill.append(dict(message))
        lab.to_decode.append(dict(message))
    for bad in ({"layer": LAYERS}, {"layer": -1}, {"start": 3}, {"end": 99}, {"end": 0}):
        layer = dict(lab.to_decode[0])
        lab.to_decode.insert(0, {**layer, **bad})
        lab.to_decode_deliver()
        assert lab.moved == {}
    lab.run()
    assert lab.moved == {"r0": 10 * LAYERS}


# -- any order of messages, losses, repeats, aborts and time -------------------------------------

any_message = st.integers(0, 30)


class TransferMachine(RuleBasedStateMachine):
    """The laws are checked after every rule by the lab; at the end all must be over and free."""

    @initialize(
        blocks=st.integers(6, 14),
        there=st.integers(6, 14),
        budget=st.integers(3, 12),
        cache=st.booleans(),
        local_below=st.sampled_from([0, 0, 5]),
    )
    def start(self, blocks, there, budget, cache, local_below) -> None:
        self.lab = pair(
            N=blocks,
            T=budget,
            S=3,
            L=22,
            cache=cache,
            local_below=local_below,
            prefill={"N": there},
        )

    @precondition(lambda self: len(self.lab.requests) < 6)
    @rule(length=st.integers(1, 16), seed=st.sampled_from([1, 1, 2]), most=st.integers(1, 4))
    def add(self, length, seed, most) -> None:
        self.lab.add(prompt(length, seed), most)

    @precondition(lambda self: self.lab.decode.has_work)
    @rule()
    def decode_step(self) -> None:
        self.lab.decode_step()

    @precondition(lambda self: self.lab.prefill.has_work)
    @rule()
    def prefill_step(self) -> None:
        self.lab.prefill_step()

    @precondition(lambda self: self.lab.to_prefill)
    @rule(index=st.sampled_from([0, 0, 0, 1, 2]), keep=st.sampled_from([False, False, True]))
    def to_prefill(self, index, keep) -> None:
        self.lab.to_prefill_deliver(index % len(self.lab.to_prefill), keep=keep)

    @precondition(lambda self: self.lab.to_decode)
    @rule(index=st.sampled_from([0, 0, 0, 1, 2]), keep=st.sampled_from([False, False, True]))
    def to_decode(self, index, keep) -> None:
        self.lab.to_decode_deliver(index % len(self.lab.to_decode), keep=keep)

    @precondition(lambda self: self.lab.to_decode)
    @rule()
    def to_decode_all(self) -> None:
        while self.lab.to_decode:
            self.lab.to_decode_deliver()

    @precondition(lambda self: self.lab.to_prefill or self.lab.to_decode)
    @rule(index=any_message)
    def lose(self, index) -> None:
        queues = [q for q in (self.lab.to_prefill, self.lab.to_decode) if q]
        queue = queues[index % len(queues)]
        del queue[index % len(queue)]

    @rule(time=st.sampled_from([1, TIMEOUT // 2, TIMEOUT + 1]))
    def wait(self, time) -> None:
        self.lab.wait(time)

    @precondition(lambda self: self.lab.requests)
    @rule(index=st.integers(0, 5))
    def abort(self, index) -> None:
        self.lab.abort(self.lab.requests[index % len(self.lab.requests)].request_id)

    @precondition(lambda self: self.lab.connected and len(self.lab.requests) > 1)
    @rule(really=st.sampled_from([False, False, True]))
    def cut(self, really) -> None:
        if really:
            self.lab.cut()

    def teardown(self) -> None:
        if hasattr(self, "lab"):
            self.lab.run()


TestTransferMachine = TransferMachine.TestCase
TestTransferMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)

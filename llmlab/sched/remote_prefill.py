"""The decode side of a disaggregated pair: long prompts are computed by another worker.

    waiting --_admit_head--> arriving --arrived--> prefilling --commit--> decoding
       ^                        |                  (one token missing)
       +---- retry_locally -----+

A request whose prompt is computed elsewhere takes the blocks of its whole prompt first, then asks,
then waits in `arriving` while they are filled. When they are full it runs like any other request
that has one prompt token left: the last position is computed again here (vLLM does the same),
because its logits choose the first token. So sampling, stopping and counting stay in one place.

A full pool is back-pressure: the head of the queue finds no blocks, asks for nothing, and nobody
overtakes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from llmlab.config import EngineConfig, require_int
from llmlab.sched import integrity
from llmlab.sched.base import FINISH_REASONS
from llmlab.sched.chunked import Chunked
from llmlab.sched.plan import StepPlan
from llmlab.sched.request import Request, RequestStatus

Ask = Callable[[Request, int], None]


class RemotePrefill(Chunked):
    """Chunked, for the worker that decodes.

    ask(request, first): have positions first .. num_prompt_tokens - 1 of this request computed;
    its blocks are taken and held, what lies before `first` is in the prefix cache. local_below: a
    request with fewer prompt tokens to compute than this stays here.
    """

    def __init__(
        self,
        config: EngineConfig,
        ask: Ask,
        *,
        local_below: int = 0,
        vocab_size: int | None = None,
    ) -> None:
        super().__init__(config, vocab_size=vocab_size)
        require_int("RemotePrefill", "local_below", local_below, 0)
        self.ask = ask
        self.local_below = local_below
        self.connected = True  # False: everything stays local
        self.arriving: dict[str, Request] = {}
        self._local: set[str] = set()  # came back from `arriving`

    def _may_admit(self, budget: int) -> bool:
        seats = self.config.max_num_seqs - len(self.arriving)
        return super()._may_admit(budget) and self.num_running < seats

    def _admit_head(self, step: StepPlan) -> bool:
        request = self.waiting.head
        if not self._fresh(request):
            return super()._admit_head(step)
        hits = self.blocks.lookup(request)
        first = len(hits) * self.config.block_size
        if request.num_tokens - first < self.local_below:
            return super()._admit_head(step)
        if not self.blocks.allocate(request, request.num_tokens, hits, self._keep_free()):
            return False
        self.waiting.remove(request)
        request.num_cached_tokens = first
        self.blocks.hold(request.request_id, request.block_ids)
        self.arriving[request.request_id] = request
        self.ask(request, first)
        return True

    def _fresh(self, request: Request) -> bool:
        """May it be computed elsewhere? Not what has run here or has come back already."""
        begun = request.num_preemptions > 0 or request.request_id in self._local
        return self.connected and not begun

    def arrived(self, request_id: str) -> bool:
        """All blocks are filled: run. False if it was aborted meanwhile.

        The caller releases the hold (`blocks.release`), also in that case.
        """
        request = self.arriving.pop(request_id, None)
        if request is None:
            return False
        request.status = RequestStatus.RUNNING
        request.admission = next(self._admissions)
        request.num_computed_tokens = request.num_prompt_tokens - 1
        self.blocks.register(request, request.num_computed_tokens - request.num_cached_tokens)
        self.prefilling.append(request)
        return True

    def retry_locally(self, request_ids: Iterable[str]) -> list[str]:
        """Put requests whose blocks will not come back in front of the queue, in this order.

        Returns those that were still arriving. Their blocks stay held until the caller is sure
        that nobody writes to them any more.
        """
        back = [request_id for request_id in request_ids if request_id in self.arriving]
        for request_id in reversed(back):
            request = self.arriving.pop(request_id)
            self.blocks.free(request)
            self._local.add(request_id)
            self.waiting.put_back(request)
        return back

    def finish(self, request_id: str, reason: str, stop_reason: int | str | None = None) -> bool:
        if reason in FINISH_REASONS:
            self.retry_locally([request_id])
        self._local.discard(request_id)
        return super().finish(request_id, reason, stop_reason)

    def check_integrity(self) -> None:
        integrity.check(self, self.arriving.values())

    def _settle(self, finished: list[Request]) -> None:
        self._local.difference_update(request.request_id for request in finished)
        super()._settle(finished)

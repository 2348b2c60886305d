"""Static batching: a batch starts together, and the next one starts when its last member ends.

Room for the whole answer is taken at the start, so nothing is ever preempted; what a short answer
leaves unused stays unused until the longest is done. (So served systems before Orca, OSDI 2022.)
"""

from __future__ import annotations

from llmlab.sched.base import BaseScheduler
from llmlab.sched.door import Limit
from llmlab.sched.plan import StepPlan


class Static(BaseScheduler):
    """All prompts of the batch, whole; then one token for each of its members."""

    def _limits(self) -> list[Limit]:
        most, longest = self.config.max_num_batched_tokens, self.config.max_model_len
        why = f"max_num_batched_tokens = {most}, and prompts are not cut"
        return [*super()._limits(), Limit(most, longest, why)]

    def _fill(self, step: StepPlan) -> None:
        if self.num_running == 0:
            self._form_batch(step)
        if self.prefilling or not self._decode_all(step):
            self._serve_running(step, self.prefilling or self.decoding)

    def _form_batch(self, step: StepPlan) -> None:
        while self._may_admit(step.budget):
            request = self.waiting.head
            room = request.num_prompt_tokens + request.max_tokens - 1
            if not self._admit(step, self.blocks.lookup(request), room):
                break

    def _chunk(self, missing: int, budget: int) -> int:
        return missing if missing <= budget else 0

    def _may_begin(self, budget: int) -> bool:
        return False  # the batch is closed as long as anything runs

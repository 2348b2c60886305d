"""The scheduler: who computes how many tokens in the next step, and in which KV blocks.

Reading order: request, plan, blocks, queues, door, base, then the policies static, continuous and
chunked, which differ in how they fill a step. `oracle` is a model made of hashes that notices every
wrong block, position or token. No torch, no clock.
"""

from llmlab.sched.base import BaseScheduler
from llmlab.sched.blocks import BlockManager
from llmlab.sched.chunked import Chunked
from llmlab.sched.continuous import Continuous
from llmlab.sched.plan import Scheduler, StepPlan
from llmlab.sched.request import Request, RequestStatus, SamplingParams
from llmlab.sched.static import Static

__all__ = [
    "BaseScheduler",
    "BlockManager",
    "Chunked",
    "Continuous",
    "Request",
    "RequestStatus",
    "SamplingParams",
    "Scheduler",
    "Static",
    "StepPlan",
]

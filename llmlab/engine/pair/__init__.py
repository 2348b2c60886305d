"""The two workers of `engine.disaggregated`, and what passes between them.

Reading order: job, protocol (both sides as plain objects), link, prefill_worker, decode_worker,
process (what a worker's process runs), result.
"""

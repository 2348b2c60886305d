"""Triton kernels of one transformer block, each beside its plain-torch spec and its launcher.

The files in the order of a layer:

    norm.py              RMSNorm, with the residual added on the way
    fused.py             QK-norm, RoPE and the KV write in one kernel (rope.py, kv_write.py: alone)
    paged_attention.py   who attends to what; sends decodes and prefills to their kernels
    paged_prefill.py     chunks of many tokens, mixed batches
    paged_decode.py      one token a request, split over the context
    activation.py        silu(gate) * up

`online_softmax.py` is the arithmetic both attention kernels share, `tuning.py` the block sizes,
`launch.py` how a kernel is started, `aot.py` what the compiler makes of it for a given chip.

With `TRITON_INTERPRET=1` set before the first import, every kernel runs on the CPU in Triton's
interpreter, slowly and one program at a time. Importing this package itself imports no Triton.
"""

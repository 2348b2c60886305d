"""What must be set before any test module is imported.

Without a CUDA device the Triton kernels run in Triton's interpreter, on the CPU; Triton reads the
flag when it is first imported. A runner started in the background may ignore SIGINT, which its
children would inherit: the tests that press Ctrl-C need it.
"""

import os
import signal
import sys
from pathlib import Path

if not Path("/dev/nvidiactl").exists():
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("triton was imported before tests/conftest.py: set TRITON_INTERPRET=1")
    os.environ["TRITON_INTERPRET"] = "1"

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """`assert_close` asks whether a tensor is distributed: seconds of imports for a "no"."""
    if comparison := sys.modules.get("torch.testing._comparison"):
        comparison._HAS_DTENSOR = False

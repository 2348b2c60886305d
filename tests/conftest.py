"""Without a CUDA device the Triton kernels run in Triton's interpreter, on the CPU.

Triton reads the flag when it is first imported, so it is set here, before any test module is.
"""

import os
import sys
from pathlib import Path

if not Path("/dev/nvidiactl").exists():
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("triton was imported before tests/conftest.py: set TRITON_INTERPRET=1")
    os.environ["TRITON_INTERPRET"] = "1"

"""One pure function over many cells: in processes here, or on a Dask cluster.

    runner = make_runner(workers=2)                      or dask=True, or scheduler="tcp://..."
    for done in runner.run(function, enumerate(cells)):  in the order in which they end
        ...

`function` is a top-level function, or a `functools.partial` of one, of one cell; it may run twice
for a cell whose worker died, so it must change nothing. What it raises is that cell's error and
stops no other. `Results` keeps what comes back, line by line, so that a killed run can go on.
This package does not know what a cell means.
"""

from llmlab.executor.cells import ATTEMPTS, Done, Function, Runner, Serial, cores, make_runner
from llmlab.executor.code import code_version
from llmlab.executor.results import Differs, Results

__all__ = [
    "ATTEMPTS",
    "Differs",
    "Done",
    "Function",
    "Results",
    "Runner",
    "Serial",
    "code_version",
    "cores",
    "make_runner",
]

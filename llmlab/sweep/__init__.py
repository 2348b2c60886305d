"""Many configurations at once: a grid, a function of one cell, the best cells, a table.

    grid = read_grid({"rate": "1:8:1", "max_num_batched_tokens": "512,1024"})
    setting = make_setting(grid)
    figures = cell_function(setting)(grid[0])

Who runs the cells is `llmlab.executor`; this package knows what a cell means. No torch, except in
the function that runs a cell on the real engine.
"""

from llmlab.sweep.best import Best, smaller_is_better
from llmlab.sweep.cell import FIGURES, Setting, cell_function, make_setting, sources
from llmlab.sweep.grid import AXES, Grid, read_grid

__all__ = [
    "AXES",
    "FIGURES",
    "Best",
    "Grid",
    "Setting",
    "cell_function",
    "make_setting",
    "read_grid",
    "smaller_is_better",
    "sources",
]

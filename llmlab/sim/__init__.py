"""The real scheduler under a virtual clock: a cost model in place of the model. No torch."""

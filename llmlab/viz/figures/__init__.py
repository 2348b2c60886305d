"""Figures: one pure function from a trace or plain numbers to a plotly figure, one a file."""

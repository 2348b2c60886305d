"""What happened, in numbers: workloads, the client over HTTP, metrics of a trace, reports."""

"""One script per claim; each prints as its last line one JSON object. See docs/benchmarks.md."""

"""Pages that people look at: one load test, or two side by side."""

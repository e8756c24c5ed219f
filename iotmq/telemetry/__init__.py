"""Histograms, the lag of the event loop, traces, and their export by OpenTelemetry."""

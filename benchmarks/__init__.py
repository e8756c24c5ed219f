"""Benchmarks: ``python -m benchmarks`` runs all of them, ``--quick`` in less time and less exactly."""

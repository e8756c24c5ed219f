"""Counts and times of what a broker does, and their sums by minute and day.

Start with `statistics`, which the other parts report to; the rest is how it counts.
"""

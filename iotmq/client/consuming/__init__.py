"""Consumers: with a listener (`push_consumer`) or by hand (`pull_consumer`).

Start with `queue_reader`, which reads one queue for both.
"""

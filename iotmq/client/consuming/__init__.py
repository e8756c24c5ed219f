"""Consumers: with a listener (`push_consumer`) or by hand (`pull_consumer`).

Start with `queue_reader`, which reads one queue for both. What a listener failed on comes again through
`send_to_retry_topic`.
"""

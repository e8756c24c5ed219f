"""Consumers: with a listener (`push_consumer`), or asked for messages (`pull_consumer`); by message in `pop`.

The first two are members of their group by `membership`, and keep offsets by `group_offsets`. Start with
`queue_reader`, which reads one queue for a listener, and `queue_fetch`, which does it for who asks. What a
listener failed on comes again through `send_to_retry_topic`.
"""

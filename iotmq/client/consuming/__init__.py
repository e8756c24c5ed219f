"""Consumers: with a listener (`pushing`), asked for messages (`pulling`), or of single messages (`pop`).

The first two are `members` of their group, and keep `offsets`. Start with `pushing.queue_reader`, which reads
one queue for a listener, and `pulling.queue_fetch`, which does it for who asks. What a listener failed on
comes again through `pushing.send_to_retry_topic`.
"""

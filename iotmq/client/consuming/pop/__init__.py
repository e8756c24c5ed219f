"""A consumer of single messages ("pop"): any number of them share the messages of a queue.

Start with `pop_consumer`. It asks each broker by `pop_fetch`, counts what it holds by `held_messages`, and
ends messages by `settling`.
"""

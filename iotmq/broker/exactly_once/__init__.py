"""Store each message once, also when its sender sends it again.

Start with `stored_once`, which leaves out what is stored already. `received_ids` keeps the packet ids of
QoS 2, and `received_marks` finds them in batches and records.
"""

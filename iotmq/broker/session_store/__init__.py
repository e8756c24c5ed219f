"""Store MQTT sessions and shared groups: records in the log, the state they add up to, and its reads.

Start with `projection`, which reads the records of `records`; `log` writes them.
"""

"""What a broker stores of MQTT sessions and shared groups: records in the log, what they add up to, reads.

Start with `projection`, which reads the records of `records`; `log` writes them.
"""

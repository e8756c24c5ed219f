"""Work on a store that is closed: look at it, check it, rebuild what is derived, repair the log.

Start with `inspection`; each other file is one command of `iotmq store`.
"""

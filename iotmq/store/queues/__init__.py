"""Reads by queue: from an offset to records, from a time to an offset, without stalls on cold memory.

Start with `consume_queue`; `reads` takes what its entries point to out of the log.
"""

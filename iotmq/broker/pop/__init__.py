"""Consumption by message ("pop"): any number of consumers share the messages of a queue.

Read `pop_queue.pyx` first: what a group has of one queue. `states.py` keeps that in the log and the database,
`pops.py` has it in memory and writes what changes, `dead_letters.py` buries what was handed out too often.
"""

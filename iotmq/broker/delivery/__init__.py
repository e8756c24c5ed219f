"""New records and retained messages on their way to front ends.

Start with `delivery`, which matches records with filters; `retained` keeps the last message of each topic.
"""

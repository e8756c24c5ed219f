"""Traces: what happens to a client, to messages of a topic, or to connections from an address.

Begin with `traces.py`. While nothing is traced no connection knows of any of this.
"""

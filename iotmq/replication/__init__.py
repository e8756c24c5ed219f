"""Replicate a broker's log between members, and decide which of them writes it.

docs/explanation/replication.md explains the rules. Nothing but `consensus` does I/O: the state machine is
told what happened and hands out what is to be done. Begin with `member`; `leading` holds a master's
followers, `cluster_state` the value in the consensus store.
"""

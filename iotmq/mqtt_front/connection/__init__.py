"""One connected device: its connection core, its socket, and what is being sent to it.

Start with `device`; `replay_pace` limits how fast a device that returns is sent its backlog.
"""

"""Several front ends as processes of one machine, sharing ports.

Start with `supervisor`, which starts them and restarts the dead; `channel` joins it and each of them. The
program of a worker, which assembles a front end, stands above this room: `commands/mqtt_worker.py`.
"""

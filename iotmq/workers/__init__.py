"""Several front ends as processes of one machine, sharing ports.

Start with `supervisor`, which starts them and restarts the dead; `channel` joins it and each of them. What
runs in one of them is `commands/mqtt_worker.py`.
"""

"""Several front ends as processes of one machine, sharing ports.

Start with `supervisor`, which starts them and restarts the dead; `worker` is one of them, `channel` joins the
two.
"""

"""Messages for later: delay levels, timers, and how each is delivered when its time has come.

Start with `timers`; `scheduling` is what joins the parts.
"""

"""Open a store after a clean stop or a crash: check its log, repair damage, and take the queues back to it.

Start with `opening`, then `recovery`, which decides where the log ends; `damage` repairs what is before that
end. `write_state` knows whether the store takes records.
"""

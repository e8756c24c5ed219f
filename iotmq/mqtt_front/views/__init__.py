"""Show operators the connections of one front end, their subscriptions, and who was refused.

Start with `connections`; `connection_walk` looks at the connections themselves.
"""

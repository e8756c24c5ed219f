"""Let clients find this broker: the address they are told, and the registries that tell it.

Start with `service`.
"""

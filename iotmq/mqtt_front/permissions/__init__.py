"""Permissions of devices: rules for topics, and their meaning for one connection.

`rule` is what a file or an identity says, `rule_set` which rules are for a device, `containment` whether all
topics of a filter are allowed, `rights` what the hot path asks, `permissions` what the rest of the front end
does.
"""

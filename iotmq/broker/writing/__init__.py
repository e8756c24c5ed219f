"""The way of messages into the log, up to the moment their sender is told.

Start with `message_writer`, through which all of them pass.
"""

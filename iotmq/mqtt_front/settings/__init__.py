"""The settings of an MQTT front end.

Start with `mqtt`, the section; the other files are tables in it.
"""

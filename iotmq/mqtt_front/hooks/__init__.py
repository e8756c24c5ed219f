"""Call programs of users at what devices do (`mqtt.hooks`), without the devices waiting for each other.

Start with `hook_calls`, which the front end asks. What users write is a class of `iotmq.hooks`.
"""

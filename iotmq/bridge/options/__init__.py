"""Check the options of `format("iotmq")`."""

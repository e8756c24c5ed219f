"""`iotmq pub`, `iotmq sub` and `iotmq rr`: what people type to try a broker out."""

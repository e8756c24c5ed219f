"""Words about messages: send, read, follow and archive them. Start with `produce_consume`."""

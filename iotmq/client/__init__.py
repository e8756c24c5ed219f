"""The native client: routes, producer, consumers, and the ports front ends use."""

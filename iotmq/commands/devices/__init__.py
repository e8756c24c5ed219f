"""Words about MQTT devices: their users and rights, bans, kept sessions, routes. Start with `users`."""

"""Words about MQTT devices: users, rights, bans, kept sessions, routes; a file for each, e.g. `users`."""

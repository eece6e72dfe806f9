"""What agents and relays say to each other about mail: envelopes, calls and answers."""

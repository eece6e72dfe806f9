"""`holdfast relay`: run a relay, and an agent's own relays."""

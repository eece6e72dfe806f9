"""An agent's use of its relays: its profile, published and never rolled back."""

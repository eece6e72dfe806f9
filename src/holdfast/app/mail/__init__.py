"""Mail of an agent in its worker: sent, taken in, sent again, secured."""

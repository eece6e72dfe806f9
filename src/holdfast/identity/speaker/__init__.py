"""Who signs as the agent: the open vault, or a signer process behind a socket."""

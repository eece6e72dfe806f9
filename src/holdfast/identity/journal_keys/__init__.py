"""The keys of a journal and the secrets of its tools: in keys.json, in the vault, or from the signer."""

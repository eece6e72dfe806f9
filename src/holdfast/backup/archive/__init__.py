"""What is inside an archive: the manifest, and a reader that trusts nothing but a signed head."""

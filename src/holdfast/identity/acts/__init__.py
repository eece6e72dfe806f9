"""What a person does to an identity: make, rotate, evict, recover, retire, print and replace paper."""

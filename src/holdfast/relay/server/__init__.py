"""The relay server: a store that syncs before it answers, the rules of registration, HTTP around both."""

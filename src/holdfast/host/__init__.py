"""What Holdfast asks of the operating system: private files, folders, mounts, SQLite, hardening, logs.
Imports core and errors."""

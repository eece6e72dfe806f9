"""What commands print: tables, JSON, errors, progress."""

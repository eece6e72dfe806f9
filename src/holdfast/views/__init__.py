"""Read models: what `--json`, pages and programs are shown. They get open ports and never import `app`."""

"""Code of a tool that outlives its attempt: processes of blocking tools, threads of async ones."""

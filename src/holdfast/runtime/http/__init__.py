"""`call.http`: one request sent once, and what is known of it afterwards. Imports no other room of the runtime."""

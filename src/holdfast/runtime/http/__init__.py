"""`call.http`: one request sent once, and what is known of it afterwards."""

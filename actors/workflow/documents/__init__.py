"""Flow documents: graphs as JSON or YAML, checked whole, and compiled into specs."""

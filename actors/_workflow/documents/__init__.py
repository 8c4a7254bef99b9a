"""Flow documents: graphs as JSON or YAML. They are checked as a whole and compiled into specs."""

"""A build back end that builds nothing: `pip download` asks it for a name and a version."""

"""Pages for people: the same sessions and runs as the API's, as HTML."""

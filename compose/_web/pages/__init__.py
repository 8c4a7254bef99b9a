"""HTML pages of the API's sessions and runs, for people."""

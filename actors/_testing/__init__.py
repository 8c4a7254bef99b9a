"""The models of `actors.testing`: a script, a function, a recording."""

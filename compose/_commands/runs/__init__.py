"""The commands of `callboard runs`: list and show runs, follow their events, stop, decide and repeat them."""

"""Child processes: starting, asking, and ending them."""

"""Child processes: one way to start them, to ask them, to hear of their end, and to end them."""

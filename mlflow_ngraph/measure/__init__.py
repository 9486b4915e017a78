"""The timed loop, what it costs, and what its samples say."""

"""One study over many devices: their description, the engine that takes jobs to them, and what travels."""

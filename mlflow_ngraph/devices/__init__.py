"""Device profiles, and the fingerprint of the machine that really ran."""

"""Device profiles, and the fingerprint of the machine."""

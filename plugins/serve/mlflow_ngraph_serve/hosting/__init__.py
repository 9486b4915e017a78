"""A tracking server for a lab, with what a shared one needs."""

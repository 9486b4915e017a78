"""The first hour on a machine whose device profile has never run: everything is tried once, and reported."""

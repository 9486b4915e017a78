"""Tracking server for a lab: users, certificates, database."""

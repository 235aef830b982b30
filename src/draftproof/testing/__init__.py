"""Kits that prove a backend or a drafter, and drafters that follow a script."""

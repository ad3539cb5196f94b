"""Politeness: robots.txt, host leases, the pause between two requests to a host."""

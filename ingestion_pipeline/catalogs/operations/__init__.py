"""Operator actions on extractions: cancel, resume, retry, rerun, accept, requeue; retention."""

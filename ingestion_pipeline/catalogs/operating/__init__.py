"""What operators do to extractions: cancel, resume, retry, rerun, publish; and what is kept."""

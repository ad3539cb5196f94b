"""When a source is checked next: tiers, change model, polling budget, due sources."""

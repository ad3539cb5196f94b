"""Learn CSS selectors from pages that a model has read, and apply them to other pages."""

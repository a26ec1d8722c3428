"""Scripts that make the packaged data files. Not part of the product."""

"""What each recipe says to its models, one module a recipe."""

"""What an answer says and what it is worth: the parser, the recipes' rewards, advantages and metrics. No torch here."""

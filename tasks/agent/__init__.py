"""The agent: tools, the ReAct loop, and each recipe's prompts."""

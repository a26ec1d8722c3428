"""What a run of collect would cost, before it does: requests, bytes, time, budgets."""

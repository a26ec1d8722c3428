"""One folder a street-view provider; `provider` says what it has to be, and no other room names one."""

"""Servers of the services that geofix asks, as others publish them, on loopback: `make test-real` runs against them."""

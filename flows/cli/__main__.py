"""`python -m flows.cli`: the same as `geofix`."""

from flows.cli.application import main

main()

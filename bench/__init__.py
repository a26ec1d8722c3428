"""Side-by-side benchmarks. Times differ from machine to machine; the ratios in one run are what counts."""

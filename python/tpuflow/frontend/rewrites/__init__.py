"""The rewrites, one concept per file; `tpuflow.frontend.normalise` lists them in order."""

"""The rewrites, one concept per file; `tpuflow.frontend.normalize` lists them in order."""

"""Files and arrays: input is validated, output is written atomically.

    files/      text, JSON, TOML; atomic replacement of files
    arrays.py   NumPy files with bounded memory, headers first
    memory.py   memory limits for data from files
    samples.py  samples of a network's inputs, cut into batches

Models are read by `tpuflow.frontend`, graphs and programs by `tpuflow.partitioning.storage`.
"""

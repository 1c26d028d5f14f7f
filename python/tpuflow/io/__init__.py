"""Files and arrays: what is read from outside is checked, what is written is complete or absent.

    files/      text, JSON, TOML; files written beside their target and renamed
    arrays.py   NumPy files with bounded memory, headers first
    memory.py   how much memory data from files may take
    samples.py  samples of a network's inputs, cut into batches

Models are read by `tpuflow.frontend`, graphs and programs by `tpuflow.partitioning.storage`.
"""

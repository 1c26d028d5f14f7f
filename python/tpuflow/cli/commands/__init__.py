"""The commands: each reads its words, calls the packages below and prints what they return.

    build.py      build
    stages.py     calibrate, quantize
    precision.py  sensitivity, mixed, bisect
    statistics.py compare-statistics
    simulate.py   simulate
    levels.py     run, compare, evaluate
    programs.py   inspect, check, disasm, asm
    device.py     raw, smoke
    debug.py      debug, steps
    bundle.py     bundle and its commands
    weights.py    weights and its commands
    npz.py        npz and its commands
    zoo.py        zoo
    listings.py   ops, machine, fields
    alloc.py      alloc
    options.py    options several commands share
    console.py    lines, tables, progress

Nothing is computed here, and everything heavy is imported when a command runs.
"""

"""Sweeps over folders of networks: supported stages, similarity of results, cost.

    networks.py   the networks of a folder, their samples, and the published names they stand for
    stages.py     one network through a part of the stages, every stage measured on its own
    worker.py     the process in which that happens
    sweep.py      all networks: one process per network and part, records that outlive an interruption
    page.py       the records as a page of tables

A record is a JSON file per network and part (`float`, then one per element type). It is written after every
stage, so that whatever ends a process - a defect, a limit of time or memory - is known by the stage it ended.
"""

from tpuflow.pipeline.zoo.networks import Network, PublishedNetwork, networks, published_networks
from tpuflow.pipeline.zoo.page import page, summary, troubles
from tpuflow.pipeline.zoo.sweep import DTYPES, Settings, sweep

__all__ = [
    "DTYPES",
    "Network",
    "PublishedNetwork",
    "Settings",
    "networks",
    "page",
    "published_networks",
    "summary",
    "sweep",
    "troubles",
]

"""Types of the extension module; stubtest compares this file with what the build offers."""

__version__: str

"""What published examples add to the index of a class to get its label."""

__all__ = ["OFFSET"]

OFFSET = 1

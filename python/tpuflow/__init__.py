"""Quantise, compile and simulate neural networks for a systolic-array TPU, to the bit and to the cycle."""

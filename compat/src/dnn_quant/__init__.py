"""Quantisation, where the published framework keeps it: `dnn_quant.api`."""

"""Evaluation: similarity of tensors and networks to their references, and task metrics of outputs.

    similarity.py    two arrays: cosine, Euclidean distance, SQNR, largest error
    import_check.py  original and normalised model, output by output
    by_tensor.py     float model and its graph, tensor by tensor
    layer_errors.py  the error of each layer by itself, beside the error its element types imply
    comparison.py    all levels of a network, tensor by tensor: `tpuflow compare`
    tensor_files/    two files of tensors: the first that differs, and the cause
    fidelity.py      outputs of quantised networks against float: noise, top-1 agreement, losses, a metric
    scores.py        a task metric at any level against float, paired: `tpuflow evaluate`
    metrics/         task metrics: classification, detection, segmentation, text, regression

Nothing here changes a network.
"""

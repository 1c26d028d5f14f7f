"""Evaluation: how close tensors and networks are to what they stand for, and what their outputs are worth.

    similarity.py    two arrays: cosine, Euclidean, SQNR, largest error
    import_check.py  original and normalised model, output by output
    by_tensor.py     float model and its graph, tensor by tensor
    layer_errors.py  the error every layer makes by itself, beside what its types give
    comparison.py    all levels of a network, tensor by tensor: `tpuflow compare`
    tensor_files/    two files of tensors: which differ first, and why: `tpuflow npz`
    fidelity.py      outputs of quantised networks beside float: noise, decisions, losses, a metric
    scores.py        a task metric at any level beside float, paired: `tpuflow evaluate`
    metrics/         what outputs are worth: classes, boxes, pixels, words, values

It measures; nothing here changes a network.
"""

"""ONNX graphs as PyTorch modules, so that PyTorch eager can be the baseline for them too.

``converter`` turns a file into an `OnnxModule`; ``values`` says what flows between operators; the operators
themselves stand in the other modules. Imports torch: for child processes only.
"""

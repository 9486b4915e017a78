"""Convert ONNX graphs to PyTorch modules, so that PyTorch eager can be their baseline too.

``converter`` turns a file into an `OnnxModule`; ``values`` defines the values between operators; the other modules have
the operators. Imports torch: for child processes only.
"""

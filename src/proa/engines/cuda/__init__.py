"""Decoding on an NVIDIA GPU: fixed shapes, own kernels, one CUDA graph for a step."""

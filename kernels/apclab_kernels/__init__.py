"""Attention kernels over a paged KV cache: a slow truth, CPU kernels, GPU kernels."""

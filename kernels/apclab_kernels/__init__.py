"""Attention kernels over a paged KV cache: a slow truth, CPU kernels, GPU kernels. Import a module by name."""

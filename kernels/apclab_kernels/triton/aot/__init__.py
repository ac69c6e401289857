"""What the Triton kernels become for GPUs that are not here: compiled, disassembled, counted."""

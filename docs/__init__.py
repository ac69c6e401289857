"""What makes the pictures of the README and the outputs of the notebooks. Not part of the wheel."""

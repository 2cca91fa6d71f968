"""CoPE (arXiv:2405.18719): attention with positions that are counted from the content."""

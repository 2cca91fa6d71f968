"""CoPE: attention whose positions are counted from the content."""

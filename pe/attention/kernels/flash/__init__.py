"""Flash attention with a bias that is computed block by block, forward and backward."""

"""DNA models in use (paper section 5.2): variants, embeddings, composition, both strands."""

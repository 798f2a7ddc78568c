"""What tests share: tiny models, runs, servers and clients."""

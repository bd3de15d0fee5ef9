"""Work in leases: how it is divided, which maker has which piece, which weights each names, and the ledger."""

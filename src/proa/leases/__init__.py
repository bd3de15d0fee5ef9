"""Work in leases: how it is cut up, who has which piece, which weights each is made with, and the ledger of it all."""

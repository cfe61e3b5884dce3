"""The float32 side: rows that really exist, moved by the ledger's plan."""

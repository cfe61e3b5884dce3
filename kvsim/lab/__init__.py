"""lab: scenarios, sweeps and the one place where their rows are written."""

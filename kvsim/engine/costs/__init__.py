"""How long a step takes: a roofline over a device's published figures, and what users see of it."""

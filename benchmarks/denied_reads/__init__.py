"""Real shells against the rules on reading: what they open, although it is denied and nobody was asked."""

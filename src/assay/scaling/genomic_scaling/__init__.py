"""Next-base models of DNA: blocks, sequences, training."""

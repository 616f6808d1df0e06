"""A trained model at work: text, loss and multiple choice, from any checkpoint or export."""

"""What a script that nobody here wrote really does with its gradients: watched, joined, judged."""

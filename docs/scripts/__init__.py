"""Scripts that write the generated files of docs/ and help build its site."""

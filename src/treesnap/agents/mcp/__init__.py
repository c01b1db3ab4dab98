"""The history of directories for a model, by the Model Context Protocol."""

"""Steps that may fail, and how they are rolled back."""

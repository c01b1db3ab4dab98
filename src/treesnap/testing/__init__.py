"""Parts for testing treesnap, and programs that use it. Unstable: may change in any release."""

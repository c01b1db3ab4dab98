"""What commands and the processes that help them have in common; ``channel`` says how they talk."""

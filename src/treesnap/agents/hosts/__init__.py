"""What each host of agents writes to a hook and reads from it; pure."""

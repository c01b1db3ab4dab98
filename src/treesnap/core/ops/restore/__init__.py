"""Making a root as in a snapshot, all or nothing; what a crash interrupts is finished later."""

"""What people look at: one trajectory, with everything that became of it."""
